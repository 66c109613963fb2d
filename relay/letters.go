package relay

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay/core"
)

// letters publishes a copy of each dead letter to the sink's dead topic, before the settlement that makes it one: a crash
// between the two has the message fail once more, and its copy come again under the same id. What is not published within
// its time is given up, so that a topic that takes nothing holds up neither key nor sink for longer than that. The goroutine
// that settles owns it; nil does nothing.
type letters struct {
	feed  *feed
	topic *broker.Template
}

func (f *feed) newLetters() *letters {
	if f.sink.DeadTopic == "" {
		return nil
	}
	topic, err := broker.ParseTemplate(f.sink.DeadTopic)
	if err != nil {
		return nil // refused by New
	}
	return &letters{feed: f, topic: topic}
}

// lettersTime is how long the copies of one settlement may take.
func (f *feed) lettersTime() time.Duration {
	return min(f.publishTimeout(), f.relay.config.Lease/5, 2*time.Second)
}

func (l *letters) publish(io context.Context, dead []core.Letter) {
	if l == nil || len(dead) == 0 {
		return
	}
	var batch []broker.Envelope
	var ids []outbox.ID
	for i := range dead {
		id := dead[i].Envelope.ID
		e, err := l.copyOf(&dead[i])
		if err != nil {
			l.lost(id, broker.Refuse(err))
			continue
		}
		batch, ids = append(batch, e), append(ids, id)
	}
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(io, l.feed.lettersTime())
	defer cancel()
	for i, r := range l.send(ctx, batch) {
		if r.Outcome != broker.Accepted && r.Outcome != broker.Duplicate {
			l.lost(ids[i], r)
		}
	}
}

// send publishes the copies and returns their answers, once all are there or ctx ends.
func (l *letters) send(ctx context.Context, batch []broker.Envelope) []broker.Result {
	type answer struct {
		index  int
		result broker.Result
	}
	answers := make(chan answer, len(batch))
	done := func(i int, r broker.Result) {
		if i < 0 || i >= len(batch) {
			return
		}
		select {
		case answers <- answer{i, r}:
		default: // answered more often than once
		}
	}
	results := make([]broker.Result, len(batch))
	open := len(batch)
	go func() { // a publisher may hang: the settlement does not wait for it
		if fault := l.try(ctx, batch, done); fault != nil {
			for i := range results {
				done(i, broker.Result{Outcome: broker.Retry, Code: broker.CodePanic, Err: fault})
			}
		}
	}()
	for open > 0 {
		select {
		case a := <-answers:
			if results[a.index].Outcome == 0 {
				results[a.index], open = a.result, open-1
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	for i := range results {
		if results[i].Outcome == 0 {
			results[i] = broker.Result{Outcome: broker.Uncertain, Code: broker.CodePublishTimeout, Err: context.Cause(ctx)}
		}
	}
	return results
}

// try calls the publisher and returns what it panicked with.
func (l *letters) try(ctx context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) (fault error) {
	defer func() {
		if p := recover(); p != nil {
			fault = &outbox.Error{Code: broker.CodePanic, Op: "publish dead letter", Detail: fmt.Sprintf("the publisher panicked: %v", p)}
		}
	}()
	l.feed.sink.Publisher.Publish(ctx, batch, done)
	return nil
}

func (l *letters) lost(id outbox.ID, r broker.Result) {
	l.feed.log.Warn("dead letter was not published to its topic: it is kept in the database alone", "id", id.String(), "outcome", r.Outcome.String(), "code", string(r.Code), "error", r.Err)
}

// Headers of the copy alone, beside the message's own.
const (
	deadID       = "onward-dead-id"
	deadSink     = "onward-dead-sink"
	deadTopic    = "onward-dead-topic"
	deadKey      = "onward-dead-key"
	deadCode     = "onward-dead-code"
	deadError    = "onward-dead-error"
	deadAttempts = "onward-dead-attempts"
)

// maxDeadError is what goes out of an error's text, in bytes.
const maxDeadError = 500

// copyOf is the message with its cause. Its id says which death it was, so that a copy that comes again is known; it has no
// key, because the key waits.
func (l *letters) copyOf(d *core.Letter) (broker.Envelope, error) {
	e := d.Envelope
	topic, err := l.topic.Expand(&e)
	if err == nil && topic == "" {
		err = &outbox.Error{Code: broker.CodeTemplateFailed, Op: "dead topic", Detail: "its template gives an empty name for this message"}
	}
	if err != nil {
		return e, err
	}
	copied, attempts := *e.Record, strconv.Itoa(e.Attempt)
	copied.Headers = make(map[string]string, len(e.Record.Headers)+7)
	maps.Copy(copied.Headers, e.Record.Headers)
	for name, value := range map[string]string{
		deadID: e.ID.String(), deadSink: l.feed.sink.Name, deadTopic: e.Topic, deadKey: e.Key, deadCode: string(d.Code), deadError: headerText(d.Error), deadAttempts: attempts,
	} {
		if value != "" {
			copied.Headers[name] = value
		}
	}
	copied.ID = outbox.IDFrom("onward/dead/"+l.feed.sink.Name, e.ID.String()+"/"+attempts)
	copied.Topic, copied.Key, copied.KeySeq = topic, "", 0
	e.Record = &copied
	return e, nil
}

// headerText is a text as a header can carry it.
func headerText(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxDeadError {
		text = strings.ToValidUTF8(text[:maxDeadError], "")
	}
	return strings.TrimSpace(text)
}

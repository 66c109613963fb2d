package brokertest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Unavailable: the broker, not the message. Nothing is refused for good, Check says so, and what was answered
// Unavailable does not arrive later: its next copy would be overtaken.
func survivesOutage(s *suite) {
	if s.Stop == nil {
		s.lacks("the harness cannot stop its broker")
		return
	}
	p := s.publisher()
	s.accept(p, s.batch("a", "b"))
	s.Stop(s.T)
	ctx, cancel := context.WithTimeout(s.Context(), s.Patience/3)
	defer cancel()
	want := map[string]broker.Outcome{}
	for range 5 {
		batch := s.batch("a", "b", "")
		for i, r := range s.start(ctx, p, batch).wait() {
			want[batch[i].ID.String()] = r.Outcome
			if r.Outcome != broker.Unavailable && r.Outcome != broker.Uncertain {
				s.Errorf("message %d during the outage: %s, want unavailable or uncertain: %s", i, r.Outcome, cause(r))
			}
		}
	}
	err := p.Check(ctx)
	if outbox.CodeOf(err) != broker.CodeUnavailable || outbox.Hint(err) == "" {
		s.Errorf("Check during the outage: %v (hint %q), want code %s and a hint", err, outbox.Hint(err), broker.CodeUnavailable)
	}
	s.Start(s.T)
	s.until("Check passes after the outage", func() bool { return p.Check(s.Context()) == nil })
	s.until("a message is accepted after the outage", func() bool {
		return s.publish(p, s.batch("z"))[0].Outcome == broker.Accepted
	})
	s.agree(p, want)
}

// keepsOrderThroughOutage: eight keys, one message of each in flight, repeated until it is published, while the broker
// goes and comes back: everything arrives, first copies in order.
func keepsOrderThroughOutage(s *suite) {
	if s.Stop == nil {
		s.lacks("the harness cannot stop its broker")
		return
	}
	p := s.publisher()
	const keys, before, after = 8, 50, 50
	started := make(chan struct{})
	var felt, published atomic.Int64 // how often the outage was answered, and messages published
	sent := make([][]string, keys)
	var group, warm sync.WaitGroup
	warm.Add(keys)
	for k := range keys {
		group.Go(func() {
			warmed := sync.OnceFunc(warm.Done)
			defer warmed()
			for n := 0; ; n++ {
				if n == before {
					warmed()
				}
				if n >= before+after && isClosed(started) {
					return
				}
				batch := s.batch(fmt.Sprint("key-", k))
				sent[k] = append(sent[k], batch[0].ID.String())
				if !s.repeat(p, batch, &felt) {
					return
				}
				published.Add(1)
			}
		})
	}
	warm.Wait()
	s.Stop(s.T)
	atStop := published.Load()
	s.until("the outage is felt", func() bool { return felt.Load() > 0 || published.Load() > atStop+before*keys })
	s.Start(s.T)
	close(started)
	group.Wait()
	wantInOrder(s, sent, s.readAll(p))
}

// repeat publishes a message until it is published, as the relay does, and counts the times in between.
func (s *suite) repeat(p broker.Publisher, batch []broker.Envelope, felt *atomic.Int64) bool {
	for deadline := time.Now().Add(s.Patience); ; {
		ctx, cancel := context.WithTimeout(s.Context(), s.Patience/6)
		r := s.start(ctx, p, batch).wait()[0]
		cancel()
		switch r.Outcome {
		case broker.Accepted, broker.Duplicate:
			return true
		case broker.Rejected, broker.Retry:
			s.Errorf("a sound message was answered %s: %s", r.Outcome, cause(r))
			return false
		default: // not now: it is asked again
		}
		felt.Add(1)
		if time.Now().After(deadline) {
			s.Errorf("not published within %s: %s: %s", s.Patience, r.Outcome, cause(r))
			return false
		}
		select { // a relay's breaker waits, too
		case <-time.After(5 * time.Millisecond):
		case <-s.Context().Done():
			return false
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Publish starts the batch and returns, whatever the broker does, and answers when ctx ends.
func returnsWhileSilent(s *suite) {
	if s.Freeze == nil {
		s.lacks("the harness cannot freeze its broker")
		return
	}
	p := s.publisher()
	s.accept(p, s.batch("a"))
	thaw := s.Freeze(s.T)
	ctx, cancel := context.WithTimeout(s.Context(), 5*time.Second)
	defer cancel()
	var started []*answers
	want := map[string]broker.Outcome{}
	var batches [][]broker.Envelope
	for range 200 { // 12 MiB: more than sockets take
		batch := s.batch("")
		batch[0].Payload = make([]byte, 64<<10)
		if limit := p.Capabilities().MaxBytes; limit > 0 {
			batch[0].Payload = batch[0].Payload[:min(limit, 64<<10)]
		}
		batches, started = append(batches, batch), append(started, s.start(ctx, p, batch))
	}
	if ctx.Err() != nil {
		s.Error("Publish did not return before its context ended")
	}
	for n, a := range started {
		r := a.wait()[0]
		want[batches[n][0].ID.String()] = r.Outcome
		if r.Outcome != broker.Uncertain && r.Outcome != broker.Unavailable {
			s.Errorf("batch %d: %s, want uncertain or unavailable: the broker said nothing", n, r.Outcome)
		}
	}
	thaw()
	s.until("Check passes again", func() bool { return p.Check(s.Context()) == nil })
	s.agree(p, want)
}

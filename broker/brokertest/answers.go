package brokertest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Publish: done must be called exactly once for each index, from any goroutine. All methods are safe for concurrent use.
func answersOnce(s *suite) {
	p := s.publisher()
	var group sync.WaitGroup
	started := make([]*answers, 40)
	for g := range 4 {
		group.Go(func() {
			for n := g; n < len(started); n += 4 {
				keys := make([]string, n) // the first batch is empty
				started[n] = s.start(s.Context(), p, s.batch(keys...))
				p.Capabilities()
			}
		})
	}
	group.Go(func() {
		if err := p.Check(s.Context()); err != nil {
			s.Errorf("Check beside Publish: %v", err)
		}
	})
	group.Wait()
	total := 0
	for _, a := range started {
		for i, r := range a.wait() {
			if r.Outcome != broker.Accepted {
				s.Errorf("message %d of %d: %s, want accepted: %s", i, len(a.results), r.Outcome, cause(r))
			}
		}
		total += len(a.results)
	}
	if got := len(s.readAll(p)); got != total {
		s.Errorf("%d messages arrived, want %d", got, total)
	}
	if err := p.Close(s.Context()); err != nil { // nothing is answered a second time while it closes
		s.Errorf("Close: %v", err)
	}
}

// Result: a code and a cause come with every outcome but Accepted and Duplicate.
func answersComplete(s *suite) {
	p := s.publisher()
	batch := s.batch("a", "b", "c", "d")
	if s.Poison != nil {
		s.Poison(&batch[1])
	}
	if limit := p.Capabilities().MaxBytes; limit > 0 {
		batch[2].Payload = make([]byte, limit+s.HeaderRoom+1)
	}
	results := s.publish(p, batch)
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	results = append(results, s.start(ended, p, s.batch("e")).wait()...)
	for i, r := range results {
		if fault := incomplete(r); fault != "" {
			s.Errorf("answer %d: %s: %+v", i, fault, r)
		}
	}
}

func incomplete(r broker.Result) string {
	switch {
	case r.Outcome < broker.Accepted || r.Outcome > broker.Uncertain:
		return "there is no such outcome"
	case r.Outcome <= broker.Duplicate && (r.Code != "" || r.Err != nil):
		return "a published message has no code and no cause"
	case r.Outcome > broker.Duplicate && !strings.HasPrefix(string(r.Code), "onward/"):
		return "the code is missing"
	case r.Outcome > broker.Duplicate && r.Err == nil:
		return "the cause is missing"
	case r.Outcome != broker.Throttled && r.After != 0, r.After < 0:
		return "a wait comes with Throttled alone"
	}
	return ""
}

// Publish: calls may overlap.
func overlapsBatches(s *suite) {
	p := s.publisher()
	var started []*answers
	for n := range 50 {
		started = append(started, s.start(s.Context(), p, s.batch(fmt.Sprint("k", n), "")))
	}
	for _, a := range started {
		for i, r := range a.wait() {
			if r.Outcome != broker.Accepted {
				s.Errorf("message %d: %s, want accepted: %s", i, r.Outcome, cause(r))
			}
		}
	}
}

// Publish: Unavailable for what was not sent when ctx ended.
func sendsNothingAfterContext(s *suite) {
	p := s.publisher()
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	for i, r := range s.start(ended, p, s.batch("a", "a", "b")).wait() {
		if r.Outcome != broker.Unavailable {
			s.Errorf("message %d: %s, want unavailable: its context had ended before", i, r.Outcome)
		}
	}
	if ms := s.readAll(p); len(ms) != 0 {
		s.Errorf("%d messages arrived after their context had ended", len(ms))
	}
}

// Publish: done must be called also after ctx ends. Accepted is true, and so is Unavailable, for what was not sent. What
// was answered is overwritten at once: the race detector sees who still reads it.
func answersWhenContextEnds(s *suite) {
	p := s.publisher()
	var started []*answers
	var batches [][]broker.Envelope
	for n := range 20 {
		ctx, cancel := context.WithCancel(s.Context())
		batch := s.batch(slices.Repeat([]string{""}, 30)...)
		a := s.collect(len(batch))
		p.Publish(ctx, batch, func(i int, r broker.Result) {
			clear(batch[i].Payload)
			a.done(i, r)
		})
		if n%2 == 1 {
			go cancel() // while it is on its way
		} else {
			cancel()
		}
		batches, started = append(batches, batch), append(started, a)
	}
	want := map[string]broker.Outcome{}
	for n, a := range started {
		for i, r := range a.wait() {
			want[batches[n][i].ID.String()] = r.Outcome
		}
	}
	s.agree(p, want)
}

// agree checks what arrived against the answers: all that was accepted, nothing that was unavailable or refused.
func (s *suite) agree(p broker.Publisher, want map[string]broker.Outcome) {
	s.Helper()
	arrived := map[string]int{}
	for _, id := range ids(s.readAll(p)) {
		arrived[id]++
	}
	for id, o := range want {
		switch o {
		case broker.Accepted, broker.Duplicate:
			if arrived[id] == 0 {
				s.Errorf("%s was answered %s and did not arrive", id, o)
			}
		case broker.Uncertain: // either
		default:
			if arrived[id] != 0 {
				s.Errorf("%s was answered %s and arrived", id, o)
			}
		}
	}
}

// Envelope: publishers must not change what it points to, and must not keep it after they have answered for it. The
// race detector sees who still reads what this case overwrites.
func leavesBatchAlone(s *suite) {
	p := s.publisher()
	batch := s.batch(slices.Repeat([]string{"", "k", ""}, 20)...)
	var before []outbox.Record
	var wrote [][]byte
	for i := range batch {
		batch[i].Record.Headers = map[string]string{"h": fmt.Sprint(i)}
		record := *batch[i].Record
		record.Payload, record.Headers = bytes.Clone(record.Payload), maps.Clone(record.Headers)
		before, wrote = append(before, record), append(wrote, record.Payload)
	}
	a := s.collect(len(batch))
	p.Publish(s.Context(), batch, func(i int, r broker.Result) {
		if got := batch[i].Record; !bytes.Equal(got.Payload, wrote[i]) || !maps.Equal(got.Headers, before[i].Headers) || got.ID != before[i].ID || got.Topic != before[i].Topic {
			s.Errorf("message %d was changed", i)
		}
		clear(batch[i].Payload)
		clear(batch[i].Record.Headers)
		a.done(i, r)
	})
	a.wait()
	payloads := map[string][]byte{}
	for i := range before {
		payloads[before[i].ID.String()] = wrote[i]
	}
	for _, m := range s.readAll(p) {
		if id := m.Value("onward-id"); !bytes.Equal(m.Payload, payloads[id]) {
			s.Errorf("%s arrived as %q, want %q", id, m.Payload, payloads[id])
		}
	}
}

// Close: waits for what is on its way, and answers come before it returns.
func closeWaits(s *suite) {
	p := s.publisher()
	a := s.start(s.Context(), p, s.batch(slices.Repeat([]string{""}, 300)...))
	if err := p.Close(s.Context()); err != nil {
		s.Fatalf("Close: %v", err)
	}
	if n := a.unanswered(); n != 0 {
		s.Errorf("Close returned while %d messages had no answer", n)
	}
	for i, r := range a.wait() {
		if r.Outcome != broker.Accepted {
			s.Errorf("message %d: %s, want accepted: Close waits for it", i, r.Outcome)
		}
	}
	if err := p.Close(s.Context()); err != nil {
		s.Errorf("second Close: %v", err)
	}
}

// Close: waits until ctx ends, no longer; each message has its answer even so.
func closeCutShort(s *suite) {
	p := s.publisher()
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	batch := s.batch(slices.Repeat([]string{""}, 300)...)
	a := s.start(s.Context(), p, batch)
	begun := time.Now()
	_ = p.Close(ended)
	if took := time.Since(begun); took > s.Patience/2 {
		s.Errorf("Close took %s although its context had ended", took)
	}
	want := map[string]broker.Outcome{}
	for i, r := range a.wait() {
		want[batch[i].ID.String()] = r.Outcome
	}
	s.agree(s.publisher(), want)
}

func takesNothingAfterClose(s *suite) {
	p := s.publisher()
	s.accept(p, s.batch("a"))
	if err := p.Close(s.Context()); err != nil {
		s.Fatalf("Close: %v", err)
	}
	for i, r := range s.publish(p, s.batch("a", "b")) {
		if r.Outcome != broker.Unavailable {
			s.Errorf("message %d after Close: %s, want unavailable", i, r.Outcome)
		}
	}
	if got := len(s.readAll(s.publisher())); got != 1 {
		s.Errorf("%d messages arrived, want the one before Close", got)
	}
}

// Check: publishes nothing, and ends with its context.
func checksOnly(s *suite) {
	p := s.publisher()
	for range 3 {
		if err := p.Check(s.Context()); err != nil {
			s.Fatalf("Check: %v", err)
		}
	}
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	if err := p.Check(ended); err == nil {
		s.Error("Check with an ended context returned nil")
	}
	if ms := s.readAll(p); len(ms) != 0 {
		s.Errorf("Check published %d messages", len(ms))
	}
}

package brokertest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Accepted: the broker has it; another connection reads it.
func acceptedIsReadable(s *suite) {
	p := s.publisher()
	for n := 1; n <= 20; n++ {
		batch := s.batch(fmt.Sprint("k", n%3))
		s.accept(p, batch)
		ms := s.read(n)
		if got, want := ms[n-1].Value("onward-id"), batch[0].ID.String(); got != want {
			s.Fatalf("message %d is %s, want %s", n, got, want)
		}
	}
}

// Publish: messages of one key come in order, and so do they arrive.
func keepsOrder(s *suite) {
	p := s.publisher()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable on purpose
	sent := map[string][]string{}
	waiting := map[string]*answers{}
	for range 300 {
		var keys []string
		for _, k := range random.Perm(12)[:1+random.IntN(6)] {
			keys = append(keys, fmt.Sprint("key-", k))
		}
		batch := s.batch(keys...)
		if !p.Capabilities().Pipeline { // one message of a key in flight, as the relay does
			for _, key := range keys {
				if a := waiting[key]; a != nil {
					a.wait()
				}
			}
		}
		a := s.start(s.Context(), p, batch)
		for i, key := range keys {
			sent[key], waiting[key] = append(sent[key], batch[i].ID.String()), a
		}
	}
	for _, a := range waiting {
		for i, r := range a.wait() {
			if r.Outcome != broker.Accepted {
				s.Fatalf("message %d: %s, want accepted: %s", i, r.Outcome, cause(r))
			}
		}
	}
	arrived := map[string][]string{}
	for _, m := range s.readAll(p) {
		arrived[m.Value("onward-key")] = append(arrived[m.Value("onward-key")], m.Value("onward-id"))
	}
	for key, want := range sent {
		if !slices.Equal(arrived[key], want) {
			s.Errorf("%s arrived out of order or not once:\n got %v\nwant %v", key, arrived[key], want)
		}
	}
}

// Capabilities.Dedup, Duplicate: a second copy of an id is dropped, from whichever publisher it comes.
func dropsDuplicates(s *suite) {
	p := s.publisher()
	if p.Capabilities().Dedup == 0 {
		s.lacks("the publisher claims no Dedup")
		return
	}
	batch := s.batch("a", "", "b")
	first := s.accept(p, batch)
	for _, again := range []broker.Publisher{p, s.publisher()} {
		for i, r := range s.publish(again, batch) {
			if r.Outcome != broker.Duplicate {
				s.Errorf("second copy of message %d: %s, want duplicate", i, r.Outcome)
			}
			if told := p.Capabilities(); r.Position != first[i].Position && (r.Position != "" || !told.Claims) {
				s.Errorf("second copy of message %d is at %q, the first at %q", i, r.Position, first[i].Position)
			}
		}
	}
	if got := len(s.readAll(p)); got != len(batch) {
		s.Errorf("%d messages arrived, want %d", got, len(batch))
	}
}

// Duplicate: told by the id. A database that has lost its tail gives out the same numbers again: everything else of two
// messages may be equal, and both are stored.
func tellsApartByID(s *suite) {
	p := s.publisher()
	for _, key := range []string{"k", ""} {
		var sent []string
		first := s.message(key)
		for range 3 {
			record := *first.Record
			record.ID = outbox.NewID()
			again := first
			again.Record = &record
			s.accept(p, []broker.Envelope{again})
			sent = append(sent, record.ID.String())
		}
		var arrived []string
		for _, m := range s.readAll(p) {
			if id := m.Value("onward-id"); slices.Contains(sent, id) {
				arrived = append(arrived, id)
			}
		}
		if !slices.Equal(arrived, sent) {
			s.Errorf("three messages of key %q with one number: %v arrived, want %v", key, arrived, sent)
		}
	}
}

// shortWindow is the longest window that remembersIDs waits for.
const shortWindow = 3 * time.Second

// Capabilities.Dedup is for how long: an id is not forgotten before.
func remembersIDs(s *suite) {
	p := s.publisher()
	window := p.Capabilities().Dedup
	if window == 0 || window > shortWindow {
		s.lacks(fmt.Sprintf("the window is %s; a harness with one of at most %s would show its end", window, shortWindow))
		return
	}
	batch := s.batch("a")
	began := time.Now() // the broker sees it after this
	s.accept(p, batch)
	s.until("the window ends", func() bool { return s.publish(p, batch)[0].Outcome == broker.Accepted })
	if took := time.Since(began); took < window*9/10 {
		s.Errorf("the id was forgotten after %s, the claim is %s", took, window)
	}
}

// Capabilities.Positions: accepted messages come with the broker's position; per key they grow.
func namesPositions(s *suite) {
	p := s.publisher()
	if !p.Capabilities().Positions {
		s.lacks("the publisher claims no Positions")
		return
	}
	last, byID := "", map[string]string{}
	for range 20 {
		batch := s.batch("k", "", "other")
		results := s.accept(p, batch)
		for i, r := range results {
			if r.Position == "" {
				s.Fatalf("message %d was accepted without a position", i)
			}
			byID[batch[i].ID.String()] = r.Position
		}
		if last != "" && !s.Less(last, results[0].Position) {
			s.Errorf("position %q comes after %q", results[0].Position, last)
		}
		last = results[0].Position
	}
	for _, m := range s.readAll(p) {
		if want := byID[m.Value("onward-id")]; m.Position != "" && m.Position != want {
			s.Errorf("the consumer sees position %q, the publisher was told %q", m.Position, want)
		}
	}
}

// Capabilities.Pipeline: if a message fails, every later one of its key that was on its way fails too.
func keepsPipeline(s *suite) {
	p := s.publisher()
	if !p.Capabilities().Pipeline {
		s.lacks("the publisher claims no Pipeline")
		return
	}
	if s.Poison == nil {
		s.Fatal("a publisher that claims Pipeline needs Harness.Poison")
	}
	for round := range 20 {
		key, other := fmt.Sprint("key-", round), fmt.Sprint("other-", round)
		batch := s.batch(key, other, key, key, other, key)
		s.Poison(&batch[2])
		var words []string
		for _, r := range s.publish(p, batch) {
			words = append(words, r.Outcome.String())
		}
		failed := func(i int) bool { return words[i] != "accepted" && words[i] != "duplicate" }
		if failed(0) || failed(1) || !failed(2) || !failed(3) || failed(4) || !failed(5) {
			s.Errorf("the third failed, %s is its key, answers: %s", key, strings.Join(words, " "))
		}
		arrived := map[string]int{}
		for _, id := range ids(s.readAll(p)) {
			arrived[id]++
		}
		for i, want := range []int{1, 1, 0, 0, 1, 0} {
			if got := arrived[batch[i].ID.String()]; got != want {
				s.Errorf("message %d of round %d arrived %d times, want %d", i, round, got, want)
			}
		}
	}
}

// Capabilities.MaxBytes: taken up to it, refused for good above.
func takesMaxBytes(s *suite) {
	p := s.publisher()
	limit := p.Capabilities().MaxBytes
	if limit == 0 {
		s.lacks("the publisher claims no MaxBytes")
		return
	}
	fits, loaded, over := s.message("a"), s.message("b"), s.message("c")
	fits.Payload, loaded.Payload, over.Payload = make([]byte, limit), make([]byte, limit), make([]byte, limit+s.HeaderRoom+1)
	loaded.Record.Headers = largestHeaders()
	results := s.publish(p, []broker.Envelope{fits, over, loaded, s.message("d")})
	for i, want := range []broker.Outcome{broker.Accepted, broker.Rejected, broker.Accepted, broker.Accepted} {
		if results[i].Outcome != want {
			s.Errorf("message %d: %s, want %s (MaxBytes is %d): %s", i, results[i].Outcome, want, limit, cause(results[i]))
		}
	}
	if results[1].Code != broker.CodeTooLarge {
		s.Errorf("one byte too many: code %s, want %s", results[1].Code, broker.CodeTooLarge)
	}
	if got := len(s.readAll(p)); got != 3 {
		s.Errorf("%d messages arrived, want 3", got)
	}
}

// Rejected with CodeUnroutable: no stream, queue or topic takes it; it is never accepted and lost.
func rejectsUnroutable(s *suite) {
	if s.Unroutable == "" {
		s.lacks("the harness names no unroutable topic")
		return
	}
	p := s.publisher()
	batch := s.batch("a", "a", "b")
	batch[1].Topic = s.Unroutable
	results := s.publish(p, batch)
	for i, want := range []broker.Outcome{broker.Accepted, broker.Rejected, broker.Accepted} {
		if results[i].Outcome != want {
			s.Errorf("message %d: %s, want %s: %s", i, results[i].Outcome, want, cause(results[i]))
		}
	}
	if results[1].Code != broker.CodeUnroutable {
		s.Errorf("code %s, want %s", results[1].Code, broker.CodeUnroutable)
	}
}

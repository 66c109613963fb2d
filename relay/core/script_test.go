package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// script plays the shell: it steps a machine and keeps what the machine asks for until the test answers it.
type script struct {
	t       *testing.T
	m       *Machine
	now     time.Duration
	reads   []Read
	settles []Settle
	asks    []Effect
	flights []*flight
	given   [][]int
	probes  int
	ended   Effect
	seq     int64
	read    uint64
	bytes   int // payload of each message that is given
	timer   time.Duration
	last    *store.Page // what the next page says of a pass; nil: nothing
	more    bool        // heads say that there are more
}

// flight is one message in flight.
type flight struct {
	ticket uint64
	index  int
	env    broker.Envelope
}

func play(t *testing.T, rules Rules, partitions ...int) *script {
	t.Helper()
	if rules.Rand == nil {
		rules.Rand = rand.New(rand.NewPCG(1, 2))
	}
	s := &script{t: t, m: New(rules)}
	lease := store.Lease{}
	for _, p := range partitions {
		lease.Owned = append(lease.Owned, store.Owned{Partition: p, Epoch: 1})
	}
	s.step(Leased{Lease: lease, Until: time.Hour})
	s.unpaused()
	s.step(Probed{})
	s.m.breaker.state = breakerClosed
	return s
}

func (s *script) step(events ...Event) {
	s.t.Helper()
	for _, e := range s.m.Step(s.now, events...) {
		switch e := e.(type) {
		case Read:
			s.reads = append(s.reads, e)
		case Settle:
			s.settles = append(s.settles, e)
		case ReadHeads, ReadFollowers:
			s.asks = append(s.asks, e)
		case Publish:
			for i := range e.Batch {
				s.flights = append(s.flights, &flight{e.Ticket, i, e.Batch[i]})
			}
		case GiveBack:
			s.given = append(s.given, e.Partitions)
		case Probe:
			s.probes++
		case Timer:
			s.timer = e.At
		case Reload, Stopped:
			s.ended = e
		}
	}
}

func (s *script) after(d time.Duration) {
	s.t.Helper()
	s.now += d
	s.step(Tick{})
}

// give answers the read that is out with messages of partition 0: "k" is a message of key k, "-" one without a key, "k!"
// one whose key was blocked when it was read, "k+" one whose time is ahead.
func (s *script) give(texts ...string) {
	s.t.Helper()
	if len(s.reads) == 0 {
		s.t.Fatal("no read is out")
	}
	s.reads = s.reads[1:]
	s.read++
	page := store.Page{No: s.read}
	if s.last != nil {
		page.Mark, page.Past = s.last.Mark, s.last.Past
	}
	if len(texts) > 0 {
		page.Parts = []store.Part{{Owned: store.Owned{Partition: 0, Epoch: 1}}}
	}
	for _, text := range texts {
		s.seq++
		r := store.Record{Blocked: strings.HasSuffix(text, "!"), Ahead: strings.HasSuffix(text, "+")}
		r.Seq = s.seq
		r.ID = outbox.ID{15: byte(s.seq), 14: byte(s.seq >> 8)}
		r.Topic = "t"
		r.Payload = make([]byte, s.bytes)
		if key := strings.TrimRight(text, "!+"); key != "-" {
			r.Key = key
		}
		page.Parts[0].Records = append(page.Parts[0].Records, r)
	}
	s.step(ReadDone{Page: page})
}

// flying lists what is in flight, as key+seq.
func (s *script) flying() string {
	var out []string
	for _, f := range s.flights {
		out = append(out, fmt.Sprintf("%s%d", f.env.Key, f.env.Seq))
	}
	return strings.Join(out, " ")
}

// answer answers a message in flight.
func (s *script) answer(seq int64, o broker.Outcome) {
	s.t.Helper()
	i := slices.IndexFunc(s.flights, func(f *flight) bool { return f.env.Seq == seq })
	if i < 0 {
		s.t.Fatalf("message %d is not in flight: %s", seq, s.flying())
	}
	f := s.flights[i]
	s.flights = slices.Delete(s.flights, i, i+1)
	s.step(Published{Answers: []Answer{{Ticket: f.ticket, Index: f.index, Result: broker.Result{Outcome: o, Code: "test/code"}}}})
}

// settle waits for the next settlement and confirms it. It is described as "done 3; park 4 retry; ...".
func (s *script) settle() string {
	s.t.Helper()
	text := s.peekSettle()
	s.settles = s.settles[1:]
	s.step(Settled{})
	return text
}

func (s *script) peekSettle() string {
	s.t.Helper()
	if len(s.settles) == 0 {
		s.after(20 * time.Millisecond)
	}
	if len(s.settles) == 0 {
		s.t.Fatal("no settlement is out")
	}
	var out []string
	for _, d := range s.settles[0].Settlement.Done {
		out = append(out, fmt.Sprintf("done %d of read %d", d.N, d.Read))
	}
	for _, v := range s.settles[0].Settlement.Verdicts {
		word := map[store.To]string{store.Out: "out", store.Park: "park", store.Dead: "dead"}[v.To]
		text := fmt.Sprintf("%s %d", word, v.Seq)
		if v.Reason != "" {
			text += " " + string(v.Reason)
		}
		if v.FromParked {
			text += " again"
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// unpaused answers the question what is paused, if it is out: nothing is.
func (s *script) unpaused() {
	s.t.Helper()
	if i := slices.IndexFunc(s.asks, func(e Effect) bool { r, ok := e.(ReadHeads); return ok && r.Max == 0 }); i >= 0 {
		s.asks = slices.Delete(s.asks, i, i+1)
		s.step(HeadsDone{})
	}
}

// heads answers ReadHeads with parked heads.
func (s *script) heads(due ...store.Parked) {
	s.t.Helper()
	for range 3 {
		s.unpaused()
		if i := slices.IndexFunc(s.asks, func(e Effect) bool { _, ok := e.(ReadHeads); return ok }); i >= 0 {
			s.asks = slices.Delete(s.asks, i, i+1)
			s.step(HeadsDone{Heads: store.Heads{Due: due, More: s.more}})
			return
		}
		s.after(time.Second)
	}
	s.t.Fatal("heads are not asked for")
}

func (s *script) followers(rows ...store.Parked) {
	s.t.Helper()
	i := slices.IndexFunc(s.asks, func(e Effect) bool { _, ok := e.(ReadFollowers); return ok })
	if i < 0 {
		s.t.Fatal("followers are not asked for")
	}
	key := s.asks[i].(ReadFollowers).Key
	s.asks = slices.Delete(s.asks, i, i+1)
	s.step(FollowersDone{Key: key, Records: rows})
}

func parked(key string, seq int64, attempts int) store.Parked {
	p := store.Parked{Place: store.Place{Order: seq, Seq: seq}, Reason: store.ReasonRetry, Attempts: attempts}
	p.Seq, p.Key, p.Topic, p.ID = seq, key, "t", outbox.ID{15: byte(seq)}
	return p
}

func (s *script) want(what, got, want string) {
	s.t.Helper()
	if got != want {
		s.t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

package demo

import (
	"reflect"
	"strings"
	"testing"

	"github.com/onwardhq/onward/store"
)

// evidence is a run in which all went well: two keys, three messages, one that was rolled back.
func evidence() *Evidence {
	return &Evidence{
		Ledger: []Entry{
			{ID: "a1", Key: "a", N: 1, Digest: "A1"}, {ID: "b1", Key: "b", N: 1, Digest: "B1"}, {ID: "a2", Key: "a", N: 2, Digest: "A2"},
		},
		RolledBack: map[string]bool{"r": true},
		Arrivals:   []Arrival{{"a1", "A1", 1}, {"b1", "B1", 2}, {"a2", "A2", 3}},
	}
}

func TestTheProofCountsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(e *Evidence)
		want   Proof // counts that are not those of a run in which all went well
		says   string
	}{
		"all went well": {func(*Evidence) {}, Proof{Holds: true}, ""},
		"lost":          {func(e *Evidence) { e.Arrivals = e.Arrivals[:2] }, Proof{Received: 2, Lost: 1}, "lost: message 2 of a"},
		"nobody wrote it": {
			func(e *Evidence) { e.Arrivals = append(e.Arrivals, Arrival{"x", "X", 4}) },
			Proof{NeverCommitted: 1},
			"position 4: nobody wrote it",
		},
		"rolled back": {
			func(e *Evidence) { e.Arrivals = append(e.Arrivals, Arrival{"r", "R", 4}) },
			Proof{NeverCommitted: 1},
			"its transaction was rolled back",
		},
		"out of order": {
			func(e *Evidence) { e.Arrivals[0], e.Arrivals[2] = e.Arrivals[2], e.Arrivals[0] },
			Proof{OutOfOrder: 1},
			"message 1 of a at position 1, behind message 2",
		},
		"other keys have no order": {
			func(e *Evidence) { e.Arrivals[0], e.Arrivals[1] = e.Arrivals[1], e.Arrivals[0] }, Proof{Holds: true}, "",
		},
		"altered":          {func(e *Evidence) { e.Arrivals[1].Digest = "?" }, Proof{Altered: 1}, "altered: message 1 of b"},
		"twice, no reason": {func(e *Evidence) { e.Arrivals = append(e.Arrivals, e.Arrivals[0]) }, Proof{Duplicates: 1, Unexplained: 1}, "nothing happened"},
		"twice, explained": {
			func(e *Evidence) { e.Arrivals, e.Excused = append(e.Arrivals, e.Arrivals[0]), 1 }, Proof{Holds: true, Duplicates: 1}, "",
		},
		"dead, and what waits": {
			func(e *Evidence) {
				e.Arrivals = e.Arrivals[1:2]
				e.Unsent = []Unsent{{ID: "a2", Key: "a", State: store.StateParked, Behind: true}, {ID: "a1", Key: "a", State: store.StateDead}}
			},
			Proof{Holds: true, Received: 1, Dead: 1, Waiting: 1},
			"",
		},
		"it waits for nothing": {
			func(e *Evidence) {
				e.Arrivals = e.Arrivals[:2]
				e.Unsent = []Unsent{{ID: "a2", Key: "a", State: store.StateParked, Behind: true}}
			},
			Proof{Received: 2, Lost: 1},
			"lost: message 2 of a",
		},
		"pending is lost": {
			func(e *Evidence) {
				e.Arrivals, e.Unsent = e.Arrivals[:2], []Unsent{{ID: "a2", Key: "a", State: store.StatePending}}
			},
			Proof{Received: 2, Lost: 1},
			"lost: message 2 of a",
		},
		"given up by somebody": {
			func(e *Evidence) {
				e.Arrivals, e.Unsent = e.Arrivals[:2], []Unsent{{ID: "a2", Key: "a", State: store.StateDiscarded}}
			},
			Proof{Holds: true, Received: 2, Discarded: 1},
			"",
		},
		"nothing was committed": {func(e *Evidence) { *e = Evidence{} }, Proof{Committed: -3, Keys: -2, RolledBack: -1, Received: -3}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := evidence()
			c.change(e)
			got := prove(e)
			want := c.want
			want.Committed, want.Keys, want.RolledBack = want.Committed+3, want.Keys+2, want.RolledBack+1
			if want.Received == -3 {
				want.Received = 0
			} else if want.Received == 0 {
				want.Received = 3
			}
			if words := strings.Join(got.Examples, "\n"); c.says == "" && words != "" || !strings.Contains(words, c.says) {
				t.Errorf("it says %q, want %q", words, c.says)
			}
			if n := len(got.NotSent); n != got.Dead+got.Waiting+got.Discarded {
				t.Errorf("%d are named, of %+v", n, got)
			}
			got.Examples, got.NotSent = nil, nil
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// Dead letters come first, in the order of the ledger.
func TestTheProofNamesDeadLettersFirst(t *testing.T) {
	t.Parallel()
	e := evidence()
	e.Arrivals = nil
	e.Unsent = []Unsent{
		{ID: "a2", Key: "a", State: store.StateParked, Behind: true},
		{ID: "b1", Key: "b", State: store.StateDiscarded},
		{ID: "a1", Key: "a", State: store.StateDead},
	}
	var ids []string
	for _, u := range prove(e).NotSent {
		ids = append(ids, u.ID)
	}
	if got := strings.Join(ids, " "); got != "a1 b1 a2" {
		t.Errorf("got %s", got)
	}
}

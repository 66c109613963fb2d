package harness

import (
	"testing"
	"time"
)

// Two owners of one epoch, and a copy that no fault explains, must be seen.
func TestCheckOwnersSeesWhoPublishedWhat(t *testing.T) {
	t.Parallel()
	at := func(id, relay, epoch, lineage string) Arrival {
		return Arrival{ID: id, Key: "a", Relay: relay, Epoch: epoch, Lineage: lineage}
	}
	late := func(a Arrival, seconds int64) Arrival {
		a.At = time.Unix(seconds, 0)
		return a
	}
	kill := []Fault{{Kind: "kill", Target: "one", At: time.Unix(5, 0)}}
	for name, c := range map[string]struct {
		arrivals []Arrival
		faults   []Fault
		want     Ownership
	}{
		"one after the other":   {arrivals: []Arrival{at("1", "one", "1", "1"), at("2", "two", "2", "1")}, want: Ownership{Owners: 2}},
		"two at once":           {arrivals: []Arrival{at("1", "one", "1", "1"), at("2", "two", "1", "1"), at("3", "one", "1", "1")}, want: Ownership{Owners: 1, Shared: 1}},
		"one in two lives":      {arrivals: []Arrival{at("1", "one", "1", "1"), at("2", "one", "1", "2")}, want: Ownership{Owners: 1, Shared: 1}},
		"again after a kill":    {arrivals: []Arrival{at("1", "one", "1", "1"), late(at("1", "two", "2", "1"), 6)}, faults: kill, want: Ownership{Owners: 2}},
		"again before a kill":   {arrivals: []Arrival{at("1", "one", "1", "1"), late(at("1", "two", "2", "1"), 4)}, faults: kill, want: Ownership{Owners: 2, Living: 1}},
		"on its way":            {arrivals: []Arrival{late(at("1", "two", "2", "1"), 6), late(at("1", "one", "1", "1"), 7)}, faults: kill, want: Ownership{Owners: 2}},
		"again without a cause": {arrivals: []Arrival{at("1", "two", "1", "1"), late(at("1", "three", "2", "1"), 6)}, faults: kill, want: Ownership{Owners: 2, Living: 1}},
		"a third copy":          {arrivals: []Arrival{at("1", "one", "1", "1"), late(at("1", "two", "2", "1"), 6), late(at("1", "three", "3", "1"), 7)}, faults: kill, want: Ownership{Owners: 3, Living: 1}},
	} {
		got := CheckOwners(Run{Arrivals: c.arrivals, Faults: c.faults}, 16)
		if len(got.Examples) != c.want.Shared+c.want.Living {
			t.Errorf("%s: examples %q", name, got.Examples)
		}
		if got.Owners != c.want.Owners || got.Shared != c.want.Shared || got.Living != c.want.Living {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
	other := Arrival{ID: "2", Key: "b", Relay: "two", Epoch: "1", Lineage: "1"}
	if o := CheckOwners(Run{Arrivals: []Arrival{at("1", "one", "1", "1"), other}}, 16); o.Shared != 0 {
		t.Errorf("partitions have epochs of their own: %+v", o)
	}
}

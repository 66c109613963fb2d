package harness

import (
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// The checker must see each kind of damage, or every test that uses it is worthless.
func TestCheckSeesEachKindOfDamage(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ledger := []Entry{{"a1", "a", 1}, {"a2", "a", 2}, {"b1", "b", 1}}
	at := func(id string, position uint64, second int) Arrival {
		return Arrival{ID: id, Key: id[:1], Position: position, At: start.Add(time.Duration(second) * time.Second), Epoch: strconv.Itoa(second / 3)}
	}
	kill := []Fault{{Kind: "kill", At: start.Add(10 * time.Second)}}
	for name, c := range map[string]struct {
		arrivals []Arrival
		faults   []Fault
		want     Verdict
	}{
		"whole":        {arrivals: []Arrival{at("b1", 1, 0), at("a1", 2, 0), at("a2", 3, 0)}, want: Verdict{Sent: 3, Arrived: 3}},
		"lost":         {arrivals: []Arrival{at("b1", 1, 0), at("a2", 3, 0)}, want: Verdict{Sent: 3, Arrived: 2, Lost: 1}},
		"phantom":      {arrivals: []Arrival{at("a1", 1, 0), at("a2", 2, 0), at("b1", 3, 0), at("x", 4, 0)}, want: Verdict{Sent: 3, Arrived: 3, Phantom: 1}},
		"reordered":    {arrivals: []Arrival{at("a2", 1, 0), at("a1", 2, 0), at("b1", 3, 0)}, want: Verdict{Sent: 3, Arrived: 3, Reordered: 1}},
		"attributed":   {arrivals: []Arrival{at("a1", 1, 0), at("a2", 2, 0), at("b1", 3, 0), at("a1", 4, 12)}, faults: kill, want: Verdict{Sent: 3, Arrived: 3, Duplicates: 1}},
		"both after":   {arrivals: []Arrival{at("a1", 1, 11), at("a2", 2, 11), at("b1", 3, 11), at("a1", 4, 12)}, faults: kill, want: Verdict{Sent: 3, Arrived: 3, Duplicates: 1, Unattributed: 1}},
		"one owner":    {arrivals: []Arrival{at("a1", 1, 9), at("a2", 2, 9), at("b1", 3, 9), at("a1", 4, 11)}, faults: kill, want: Verdict{Sent: 3, Arrived: 3, Duplicates: 1, SameOwner: 1}},
		"on its way":   {arrivals: []Arrival{at("b1", 1, 9), {ID: "a1", Key: "a", Position: 2, At: start.Add(10900 * time.Millisecond), Epoch: "3"}, at("a2", 3, 11), at("a1", 4, 12)}, faults: kill, want: Verdict{Sent: 3, Arrived: 3, Duplicates: 1}},
		"again":        {arrivals: []Arrival{at("b1", 1, 9), {ID: "a1", Key: "a", Position: 2, At: start.Add(10900 * time.Millisecond), Epoch: "4"}, at("a2", 3, 11), at("a1", 4, 12)}, faults: kill, want: Verdict{Sent: 3, Arrived: 3, Duplicates: 1, Unattributed: 1, SameOwner: 1}},
		"too late":     {arrivals: []Arrival{at("a1", 1, 0), at("a2", 2, 0), at("b1", 3, 0), at("a1", 4, 16)}, faults: kill, want: Verdict{Sent: 3, Arrived: 3, Duplicates: 1, Unattributed: 1}},
		"unattributed": {arrivals: []Arrival{at("a1", 1, 0), at("a2", 2, 0), at("b1", 3, 0), at("a1", 4, 9)}, faults: kill, want: Verdict{Sent: 3, Arrived: 3, Duplicates: 1, Unattributed: 1}},
	} {
		got := Check(Run{Ledger: ledger, Arrivals: c.arrivals, Faults: c.faults, Beside: 5 * time.Second})
		got.Examples = nil
		if got.String() != c.want.String() {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		if want := name == "whole" || slices.Contains([]string{"whole", "attributed", "one owner", "on its way"}, name); got.OK() != want {
			t.Errorf("%s: OK is %v", name, got.OK())
		}
	}
	if Check(Run{}).OK() {
		t.Error("a run without messages shows nothing")
	}
}

func TestARunCanBeCheckedAgainFromItsFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "run.json")
	run := Run{Ledger: []Entry{{"a1", "a", 1}}, Beside: time.Second}
	if err := run.Save(file); err != nil {
		t.Fatal(err)
	}
	again, err := Load(file)
	if err != nil || Check(again).String() != Check(run).String() {
		t.Errorf("got %v, %v", Check(again), err)
	}
}

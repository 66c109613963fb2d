package demo

import (
	"reflect"
	"testing"
)

func changes(seed uint64, n int, poison map[int]Poison) (all []change) {
	w := newWorkload(seed, poison)
	for range n {
		all = append(all, w.next())
	}
	return all
}

func TestTheSameSeedIsTheSameWorkload(t *testing.T) {
	t.Parallel()
	one := changes(7, 500, nil)
	if !reflect.DeepEqual(one, changes(7, 500, nil)) {
		t.Error("the same seed makes other changes")
	}
	other := changes(8, 500, nil)
	same := 0
	for i := range one {
		if one[i].Message.ID == other[i].Message.ID {
			t.Fatalf("step %d has the same id with another seed", i)
		}
		if one[i].Order == other[i].Order {
			same++
		}
	}
	if same > len(one)/2 {
		t.Errorf("%d of %d changes are of the same order with another seed", same, len(one))
	}
}

// The messages of an order that are committed are numbered without gaps; one that is rolled back leaves no trace in them.
func TestRolledBackChangesLeaveNoTrace(t *testing.T) {
	t.Parallel()
	n, rolledBack, ids := map[string]int{}, 0, map[string]bool{}
	for _, c := range changes(1, 5000, poisoned(5000)) {
		if ids[c.Message.ID.String()] {
			t.Fatalf("step %d: its id was there before", c.Step)
		}
		ids[c.Message.ID.String()] = true
		if c.N != n[c.Order]+1 {
			t.Fatalf("step %d: message %d of %s after %d", c.Step, c.N, c.Order, n[c.Order])
		}
		if c.RolledBack {
			rolledBack++
		} else {
			n[c.Order]++
		}
	}
	if rolledBack < 150 || rolledBack > 350 {
		t.Errorf("%d of 5000 were rolled back, want about one in twenty", rolledBack)
	}
}

// Poison is committed, or nobody would see what becomes of it.
func TestPoisonIsWrittenWhereItWasOrdered(t *testing.T) {
	t.Parallel()
	at := poisoned(1000)
	if len(at) != 4 || len(poisoned(2)) != 4 {
		t.Fatalf("%d and %d messages, want 4 of a long and of a short run", len(at), len(poisoned(2)))
	}
	for step := range 100 { // so many that chance would have rolled some back
		at[10*step+7] = TooLarge
	}
	for _, c := range changes(3, 1000, at) {
		if c.Poison != at[c.Step] || c.Poison != Harmless && c.RolledBack {
			t.Errorf("step %d: %q, rolled back %v", c.Step, c.Poison, c.RolledBack)
		}
		if large := len(c.Message.Payload) > smallestMax; large != (c.Poison == TooLarge) || len(c.Message.Payload) > widerMax/2 {
			t.Errorf("step %d, %q: %d bytes", c.Step, c.Poison, len(c.Message.Payload))
		}
		if strange := c.Message.Topic != "orders."+c.Region; strange != (c.Poison == Stranger) {
			t.Errorf("step %d, %q: topic %s", c.Step, c.Poison, c.Message.Topic)
		}
	}
}

package harness

import (
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// Ownership is what a run showed of who published what.
type Ownership struct {
	Owners   int      `json:"owners"` // epochs of partitions under which something was published
	Shared   int      `json:"shared"` // of them, those under which two processes published, or one in two lives of the database
	Living   int      `json:"living"` // further copies of what a process had published to which nothing had been done until then
	Examples []string `json:"examples,omitempty"`
}

// CheckOwners looks at who published what. Faults name processes as arrivals do. It is a pure function.
func CheckOwners(r Run, partitions int) Ownership {
	type epoch struct {
		partition int
		epoch     string
	}
	var o Ownership
	var ofEpochs, ofCopies []string
	example := func(of *[]string, format string, args ...any) {
		if len(*of) < 10 {
			*of = append(*of, fmt.Sprintf(format, args...))
		}
	}
	faults := map[string][]Fault{} // of processes
	for _, f := range r.Faults {
		faults[f.Target] = append(faults[f.Target], f)
	}
	met := func(process string, by time.Time) bool {
		return slices.ContainsFunc(faults[process], func(f Fault) bool { return !f.At.After(by) })
	}
	owners := map[epoch]string{}
	shared := map[epoch]bool{}
	copies := map[string]Arrival{}
	for _, a := range r.Arrivals {
		id, _ := outbox.ParseID(a.ID) // of a message without key alone does it matter
		e, owner := epoch{outbox.PartitionOf(a.Key, id, partitions), a.Epoch}, a.Relay+" in lineage "+a.Lineage
		if first, known := owners[e]; !known {
			owners[e] = owner
		} else if first != owner && !shared[e] {
			shared[e] = true
			example(&ofEpochs, "epoch %s of partition %d is of %s, and of %s (at position %d)", e.epoch, e.partition, first, owner, a.Position)
		}
		// The copy of a process that was killed may still be on its way when its successor's is there already.
		if before, again := copies[a.ID]; again && !met(before.Relay, a.At) && !met(a.Relay, a.At) {
			o.Living++
			example(&ofCopies, "%s at positions %d and %d: nothing was done to %s, which published the first", a.ID, before.Position, a.Position, before.Relay)
		}
		copies[a.ID] = a
	}
	o.Owners, o.Shared, o.Examples = len(owners), len(shared), append(ofEpochs, ofCopies...)
	return o
}

// Package harness runs relays as processes against real servers, breaks them, and checks what arrived against a ledger
// that was written in the business transactions themselves.
package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Entry is one message of the ledger: written in the same transaction as the message, so it is there exactly if the
// message is. N numbers the messages of a key in the order in which their transactions followed each other.
type Entry struct {
	ID  string `json:"id"`
	Key string `json:"key"`
	N   int    `json:"n"`
}

// Arrival is one message that the broker has.
type Arrival struct {
	ID       string    `json:"id"`
	Key      string    `json:"key"`
	Position uint64    `json:"position"`
	At       time.Time `json:"at"`
	Epoch    string    `json:"epoch"`             // of its partition's owner
	Relay    string    `json:"relay,omitempty"`   // the process that published it
	Lineage  string    `json:"lineage,omitempty"` // of the database that it was read from
}

// Fault is something that was done to the system.
type Fault struct {
	Kind   string    `json:"kind"` // kill, stop, restart, ...
	Target string    `json:"target"`
	At     time.Time `json:"at"`
}

// Run is all that a check needs; it can be written to a file and checked again.
type Run struct {
	Ledger   []Entry   `json:"ledger"`
	Arrivals []Arrival `json:"arrivals"` // in the order of the broker
	Faults   []Fault   `json:"faults"`
	// Beside is how long after a fault a further copy may come: a lease, the take-over, and what was in flight. The fault
	// must lie between the copies: it is why the first one was not known to be there.
	Beside time.Duration `json:"beside"`
}

// Verdict is what a run showed.
type Verdict struct {
	Sent         int      `json:"sent"`
	Arrived      int      `json:"arrived"`      // distinct
	Lost         int      `json:"lost"`         // in the ledger, not at the broker
	Phantom      int      `json:"phantom"`      // at the broker, not in the ledger
	Reordered    int      `json:"reordered"`    // first copies that came after a later one of their key
	Duplicates   int      `json:"duplicates"`   // further copies
	Unattributed int      `json:"unattributed"` // duplicates whose copies no fault lies between
	SameOwner    int      `json:"same_owner"`   // duplicates whose copies are of one owner: no take-over is why, but a lost answer may be
	Examples     []string `json:"examples,omitempty"`
}

// OK reports whether every promise was kept.
func (v Verdict) OK() bool {
	return v.Lost == 0 && v.Phantom == 0 && v.Reordered == 0 && v.Unattributed == 0 && v.Sent > 0
}

// String is the one-line verdict.
func (v Verdict) String() string {
	return fmt.Sprintf("sent %d, arrived %d, lost %d, phantom %d, reordered %d, duplicates %d (unattributed %d, of one owner %d)",
		v.Sent, v.Arrived, v.Lost, v.Phantom, v.Reordered, v.Duplicates, v.Unattributed, v.SameOwner)
}

// Check compares what arrived with the ledger. It is a pure function.
func Check(r Run) Verdict {
	v := Verdict{Sent: len(r.Ledger)}
	example := func(format string, args ...any) {
		if len(v.Examples) < 20 {
			v.Examples = append(v.Examples, fmt.Sprintf(format, args...))
		}
	}
	ledger := make(map[string]Entry, len(r.Ledger))
	for _, e := range r.Ledger {
		ledger[e.ID] = e
	}
	seen := make(map[string]Arrival, len(r.Ledger)) // the last copy
	last := map[string]int{}                        // per key: the highest N that arrived
	for _, a := range r.Arrivals {
		e, known := ledger[a.ID]
		before, again := seen[a.ID]
		switch {
		case !known:
			v.Phantom++
			example("phantom %s of key %s at position %d", a.ID, a.Key, a.Position)
		case again:
			v.Duplicates++
			if !r.between(before, a) {
				v.Unattributed++
				example("duplicate %s of key %s at positions %d and %d, no fault between them (epochs %s and %s)", a.ID, a.Key, before.Position, a.Position, before.Epoch, a.Epoch)
			}
			if before.Epoch == a.Epoch {
				v.SameOwner++
				example("duplicate %s of key %s at positions %d and %d, both of epoch %s", a.ID, a.Key, before.Position, a.Position, a.Epoch)
			}
			seen[a.ID] = a
		default:
			seen[a.ID] = a
			if e.N <= last[e.Key] {
				v.Reordered++
				example("key %s: message %d at position %d came after message %d", e.Key, e.N, a.Position, last[e.Key])
			}
			last[e.Key] = max(last[e.Key], e.N)
		}
	}
	v.Arrived = len(seen)
	for _, e := range r.Ledger {
		if _, ok := seen[e.ID]; !ok {
			v.Lost++
			example("lost %s: message %d of key %s", e.ID, e.N, e.Key)
		}
	}
	return v
}

// between reports whether a fault happened between two copies, and shortly before the second. What a relay had sent when it
// was killed may still lie before a busy broker, which dates it later. No other relay has its partitions that soon.
func (r Run) between(first, second Arrival) bool {
	const slack = 250 * time.Millisecond // clocks
	onItsWay := slack
	if first.Epoch != second.Epoch {
		onItsWay = time.Second
	}
	return slices.ContainsFunc(r.Faults, func(f Fault) bool {
		return first.At.Before(f.At.Add(onItsWay)) && second.At.After(f.At.Add(-slack)) && second.At.Before(f.At.Add(r.Beside))
	})
}

// Save writes the run, so that it can be checked again.
func (r Run) Save(file string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}

// Load reads what Save wrote.
func Load(file string) (r Run, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(b, &r)
}

// Details lists the examples of what was wrong, one a line.
func (v Verdict) Details() string { return strings.Join(v.Examples, "\n") }

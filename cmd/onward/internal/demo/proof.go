package demo

import (
	"fmt"
	"slices"

	"github.com/onwardhq/onward/store"
)

// Entry is a message of the ledger, a table that the service writes in the same transaction as the message: it is there exactly
// if the transaction was committed.
type Entry struct {
	ID, Key, Digest string
	N               int // numbers the messages of a key in the order in which they were committed, from 1
}

// Arrival is a message of the stream.
type Arrival struct {
	ID, Digest string
	Position   uint64
}

// Unsent is a committed message that the stream does not have, and where the outbox says that it stands.
type Unsent struct {
	ID    string      `json:"id"`
	Sink  string      `json:"sink"`
	Key   string      `json:"key"`
	State store.State `json:"state"` // dead, parked (behind a dead letter of its key) or discarded
	Code  string      `json:"code,omitempty"`
	Error string      `json:"error,omitempty"`
	// Behind: it waits for an earlier message of its key.
	Behind bool `json:"behind,omitempty"`
}

// Evidence is all that the proof looks at.
type Evidence struct {
	Ledger     []Entry
	RolledBack map[string]bool // ids of messages whose transactions were rolled back
	Arrivals   []Arrival       // the whole stream, in its order
	Unsent     []Unsent        // as the outbox tells of what the stream does not have
	// Excused is how many further copies the faults of the run may have left: at most a window of each sink for each relay or
	// broker that was ended.
	Excused int
}

// Proof is what the evidence shows.
type Proof struct {
	Holds          bool     `json:"holds"`
	Committed      int      `json:"committed"`       // messages of the ledger
	RolledBack     int      `json:"rolled_back"`     // messages whose transactions were
	Received       int      `json:"received"`        // different messages in the stream
	Lost           int      `json:"lost"`            // committed, not received, and nobody knows why
	NeverCommitted int      `json:"never_committed"` // received, and not in the ledger
	OutOfOrder     int      `json:"out_of_order"`    // first copies behind a later message of their key
	Altered        int      `json:"altered"`         // whose bytes are not those that were written
	Duplicates     int      `json:"duplicates"`      // further copies in the stream
	Unexplained    int      `json:"unexplained"`     // of them more than the faults of the run excuse
	Keys           int      `json:"keys"`
	Dead           int      `json:"dead"`      // committed and not sent: dead letters
	Waiting        int      `json:"waiting"`   // committed and not sent: behind a dead letter of their key
	Discarded      int      `json:"discarded"` // committed and not sent: somebody gave them up
	NotSent        []Unsent `json:"not_sent"`
	Examples       []string `json:"examples,omitempty"` // of what is wrong, at most 10
}

// prove compares the stream with the ledger. It asks nobody.
func prove(e *Evidence) Proof {
	p := Proof{Committed: len(e.Ledger), RolledBack: len(e.RolledBack), NotSent: []Unsent{}}
	ledger := make(map[string]*Entry, len(e.Ledger))
	keys := map[string]bool{}
	for i := range e.Ledger {
		ledger[e.Ledger[i].ID] = &e.Ledger[i]
		keys[e.Ledger[i].Key] = true
	}
	p.Keys = len(keys)
	received := p.readStream(e, ledger)
	p.readUnsent(e, ledger, received)
	for i := range e.Ledger {
		if m := &e.Ledger[i]; !received[m.ID] {
			p.Lost++
			p.example("lost: message %d of %s, %s", m.N, m.Key, m.ID)
		}
	}
	p.Unexplained = max(0, p.Duplicates-e.Excused)
	if p.Unexplained > 0 {
		p.example("%d further copies, and nothing happened that explains more than %d", p.Duplicates, e.Excused)
	}
	p.Holds = p.Committed > 0 && p.Lost+p.NeverCommitted+p.OutOfOrder+p.Altered+p.Unexplained == 0
	return p
}

func (p *Proof) example(format string, args ...any) {
	if len(p.Examples) < 10 {
		p.Examples = append(p.Examples, fmt.Sprintf(format, args...))
	}
}

// readStream counts what arrived, and returns the committed messages among it.
func (p *Proof) readStream(e *Evidence, ledger map[string]*Entry) (received map[string]bool) {
	received = make(map[string]bool, len(ledger))
	last := map[string]int{} // per key, the highest number that arrived
	for _, a := range e.Arrivals {
		m, committed := ledger[a.ID]
		switch {
		case !committed:
			p.NeverCommitted++
			why := "nobody wrote it"
			if e.RolledBack[a.ID] {
				why = "its transaction was rolled back"
			}
			p.example("never committed: %s at position %d: %s", a.ID, a.Position, why)
			continue
		case received[a.ID]:
			p.Duplicates++
		case m.N <= last[m.Key]:
			p.OutOfOrder++
			p.example("out of order: message %d of %s at position %d, behind message %d", m.N, m.Key, a.Position, last[m.Key])
		}
		if a.Digest != m.Digest {
			p.Altered++
			p.example("altered: message %d of %s at position %d", m.N, m.Key, a.Position)
		}
		received[a.ID] = true
		last[m.Key] = max(last[m.Key], m.N)
	}
	p.Received = len(received)
	return received
}

// readUnsent takes committed messages that the outbox can account for out of those that are missing. One that waits is
// accounted for only by a dead letter of its key.
func (p *Proof) readUnsent(e *Evidence, ledger map[string]*Entry, received map[string]bool) {
	deadKeys := map[string]bool{}
	for _, u := range e.Unsent {
		deadKeys[u.Key] = deadKeys[u.Key] || u.State == store.StateDead
	}
	for _, u := range e.Unsent {
		if ledger[u.ID] == nil || received[u.ID] {
			continue
		}
		switch {
		case u.State == store.StateDead:
			p.Dead++
		case u.State == store.StateDiscarded:
			p.Discarded++
		case u.Behind && deadKeys[u.Key]:
			p.Waiting++
		default:
			continue // it counts as lost
		}
		received[u.ID] = true
		p.NotSent = append(p.NotSent, u)
	}
	slices.SortStableFunc(p.NotSent, func(a, b Unsent) int { return rank(a) - rank(b) })
}

// rank puts dead letters first.
func rank(u Unsent) int {
	return slices.Index([]store.State{store.StateDead, store.StateDiscarded, store.StateParked}, u.State)
}

package chaos

import (
	"fmt"
	"slices"
	"time"
)

// Report is what a run showed.
type Report struct {
	OK      bool   `json:"ok"`
	Verdict string `json:"verdict"` // one line
	Meta    Meta   `json:"run"`

	Committed int `json:"committed"`
	Received  int `json:"received"`  // distinct
	Discarded int `json:"discarded"` // by the operator; may have arrived before
	Lost      int `json:"lost"`      // committed, not received, and nobody discarded it
	Phantom   int `json:"phantom"`   // received, and not in the ledger
	Altered   int `json:"altered"`   // with other bytes, or another key
	Reordered int `json:"reordered"` // first copies that came after a later message of their key
	Unaudited int `json:"unaudited"` // discards that the audit lacks, or that nobody asked for

	Duplicates   int           `json:"duplicates"` // further copies
	ByCause      map[Cause]int `json:"duplicates_by_cause"`
	Unattributed int           `json:"duplicates_unattributed"`
	MostByFaults int           `json:"duplicates_at_most"` // what the windows of all faults allow
	MostCopies   int           `json:"copies_at_most"`     // of one message

	Faults   []FaultReport       `json:"faults,omitempty"`
	ByKind   map[Kind]KindReport `json:"faults_by_kind"`
	Examples []string            `json:"examples,omitempty"` // of what is wrong, at most 20
}

// FaultReport is one fault in the timeline.
type FaultReport struct {
	Kind       Kind   `json:"kind"`
	Target     string `json:"target"`
	Detail     string `json:"detail,omitempty"`
	AtMS       int64  `json:"at_ms"` // since the run's start
	ForMS      int64  `json:"for_ms"`
	InFlight   int    `json:"in_flight"`             // committed and not received, as it began
	Unsettled  int64  `json:"unsettled"`             // not published, or not settled, as the outbox said just before
	RecoveryMS *int64 `json:"recovery_ms,omitempty"` // from its end until nine tenths of what waited then had arrived
	Observed   bool   `json:"observed,omitempty"`
	Error      string `json:"error,omitempty"`
}

// KindReport sums up the faults of one kind.
type KindReport struct {
	Count          int   `json:"count"`
	Failed         int   `json:"failed"` // could not be done
	Idle           int   `json:"idle"`   // nothing was in flight
	InFlightMedian int   `json:"in_flight_median"`
	InFlightMost   int   `json:"in_flight_most"`
	RecoveryMedian int64 `json:"recovery_ms_median"`
	RecoveryMost   int64 `json:"recovery_ms_most"`
}

// checking is a report in the making.
type checking struct {
	Report
	h         *History
	ledger    map[string]*Entry
	first     map[string]time.Time // when a message's first copy came
	discarded map[string]bool
}

// Check compares what arrived with the ledger. It is a pure function of the history.
func Check(h *History) Report {
	c := &checking{
		h: h, ledger: make(map[string]*Entry, len(h.Ledger)), first: make(map[string]time.Time, len(h.Ledger)), discarded: map[string]bool{},
		Report: Report{Meta: h.Meta, Committed: len(h.Ledger), ByCause: map[Cause]int{}, ByKind: map[Kind]KindReport{}},
	}
	for i := range h.Ledger {
		c.ledger[h.Ledger[i].ID] = &h.Ledger[i]
	}
	c.readAudit()
	c.readArrivals()
	c.findLost()
	c.readFaults()
	c.judge()
	return c.Report
}

func (c *checking) example(format string, args ...any) {
	if len(c.Examples) < 20 {
		c.Examples = append(c.Examples, fmt.Sprintf(format, args...))
	}
}

// readAudit compares discards that were asked for with those that the outbox knows. An act whose answer was an error may have
// been done all the same.
func (c *checking) readAudit() {
	asked := map[string]bool{}
	for _, act := range c.h.Acts {
		if act.Action == "discard" {
			asked[act.ID] = asked[act.ID] || act.Error == ""
		}
	}
	for _, id := range c.h.Audit {
		if _, was := asked[id]; !was {
			c.Unaudited++
			c.example("discarded, and nobody asked for it: %s", id)
			continue
		}
		c.discarded[id] = true
	}
	for id, done := range asked {
		if done && !c.discarded[id] {
			c.Unaudited++
			c.example("discarded, and not in the audit: %s", id)
		}
	}
	c.Discarded = len(c.discarded)
}

func (c *checking) readArrivals() {
	seen := make(map[string]*Arrival, len(c.h.Ledger)) // the last copy
	highest := map[string]int64{}                      // per key, the number of the latest message that came
	copies := map[string]int{}
	for i := range c.h.Arrivals {
		a := &c.h.Arrivals[i]
		e := c.ledger[a.ID]
		if e == nil {
			c.Phantom++
			c.example("never committed: %s of key %q at %s", a.ID, a.Key, a.Position)
			continue
		}
		if a.Digest != e.Digest || a.Key != e.Key {
			c.Altered++
			c.example("altered: message %d of key %q at %s, which came with key %q", e.N, e.Key, a.Position, a.Key)
		}
		if before := seen[a.ID]; before != nil {
			c.Duplicates++
			copies[a.ID]++
			c.MostCopies = max(c.MostCopies, 1+copies[a.ID])
			c.attribute(before, a, e)
		} else {
			c.first[a.ID] = a.At
			if e.Key != "" && e.N <= highest[e.Key] && !c.discarded[e.ID] { // one that was on its way as it was discarded has no place
				c.Reordered++
				c.example("out of order: message %d of key %q at %s came after message %d", e.N, e.Key, a.Position, highest[e.Key])
			}
			highest[e.Key] = max(highest[e.Key], e.N)
		}
		seen[a.ID] = a
	}
	c.Received = len(seen)
}

// attribute finds the fault that explains a further copy.
func (c *checking) attribute(first, second *Arrival, e *Entry) {
	same := first.Epoch == second.Epoch
	nearest := map[Cause]time.Duration{}
	explained := false
	for i := range c.h.Faults {
		f := &c.h.Faults[i]
		if f.Error != "" || !between(f, first, second) {
			continue
		}
		since := max(0, second.At.Sub(f.End))
		if cause := f.excuse(same); cause != "" {
			if before, known := nearest[cause]; !known || since < before {
				nearest[cause] = since
			}
		}
		if since < time.Duration(c.Meta.BesideMS)*time.Millisecond {
			explained = true // what came on top of the cause may have kept the second copy back
		}
	}
	if cause := likeliest(same, nearest); explained && cause != "" {
		c.ByCause[cause]++
		if c.Meta.NoDuplicates {
			c.example("twice, where the sink promises once: message %d of key %q at %s and %s", e.N, e.Key, first.Position, second.Position)
		}
		return
	}
	c.Unattributed++
	c.example("twice without a reason: message %d of key %q at %s (%s, epoch %s) and %s (%s, epoch %s)", e.N, e.Key,
		first.Position, c.since(first.At), first.Epoch, second.Position, c.since(second.At), second.Epoch)
}

func (c *checking) since(at time.Time) string {
	return at.Sub(c.Meta.Started).Round(time.Millisecond).String()
}

// between reports whether a fault was at work between two copies. What a relay had sent when it was killed may still lie before
// a busy broker, which dates it later; no other relay has its partitions that soon.
func between(f *Fault, first, second *Arrival) bool {
	const clocks = 250 * time.Millisecond
	onItsWay := clocks
	if first.Epoch != second.Epoch {
		onItsWay = time.Second
	}
	return first.At.Before(f.End.Add(onItsWay)) && second.At.After(f.At.Add(-clocks))
}

func (c *checking) findLost() {
	for i := range c.h.Ledger {
		e := &c.h.Ledger[i]
		if _, came := c.first[e.ID]; came || c.discarded[e.ID] {
			continue
		}
		c.Lost++
		c.example("lost: %s, message %d of key %q (%s), written at %s", e.ID, e.N, e.Key, e.Kind, c.since(e.At))
	}
}

// readFaults says of each fault what was in flight and how long it took to recover.
func (c *checking) readFaults() {
	waits := newWaits(c.h.Ledger, c.first)
	flights, recoveries := map[Kind][]int{}, map[Kind][]int64{}
	for i := range c.h.Faults {
		f := &c.h.Faults[i]
		kind := Kind(f.Kind)
		r := FaultReport{
			Kind: kind, Target: f.Target, Detail: f.Detail, Observed: f.Observed, Error: f.Error,
			AtMS: f.At.Sub(c.Meta.Started).Milliseconds(), ForMS: f.End.Sub(f.At).Milliseconds(), InFlight: waits.at(f.At), Unsettled: f.Unsettled,
		}
		k := c.ByKind[kind]
		k.Count++
		switch {
		case f.Error != "":
			k.Failed++
		case f.Observed:
		default:
			if r.InFlight == 0 && r.Unsettled == 0 {
				k.Idle++
			}
			if took, some := waits.recovery(f.End); some {
				ms := took.Milliseconds()
				r.RecoveryMS = &ms
				recoveries[kind] = append(recoveries[kind], ms)
			}
			flights[kind] = append(flights[kind], r.InFlight)
		}
		if f.Error == "" && (f.excuse(true) != "" || f.excuse(false) != "") {
			c.MostByFaults += f.Relays * (c.Meta.Window + 4*c.Meta.Page)
		}
		c.ByKind[kind] = k
		c.Faults = append(c.Faults, r)
	}
	for kind, k := range c.ByKind {
		k.InFlightMedian, k.InFlightMost = middle(flights[kind])
		k.RecoveryMedian, k.RecoveryMost = middle(recoveries[kind])
		c.ByKind[kind] = k
	}
}

// middle returns the median and the largest.
func middle[N int | int64](of []N) (median, most N) {
	if len(of) == 0 {
		return 0, 0
	}
	slices.Sort(of)
	return of[len(of)/2], of[len(of)-1]
}

package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// waits answers how many messages were committed and had not arrived at a time. What waits on purpose does not count: messages
// that are scheduled, held open, or of keys with messages that the broker never takes.
type waits struct {
	written []time.Time // sorted
	came    []time.Time // of written, by index; zero: never
	arrived []time.Time // sorted
}

func newWaits(ledger []Entry, first map[string]time.Time) *waits {
	usual := make([]*Entry, 0, len(ledger))
	blocked := map[string]bool{}
	for i := range ledger {
		if e := &ledger[i]; e.Key != "" && (e.Kind == Poison || e.Kind == Oversize) {
			blocked[e.Key] = true
		}
	}
	for i := range ledger {
		if ledger[i].Kind == "" && !blocked[ledger[i].Key] {
			usual = append(usual, &ledger[i])
		}
	}
	slices.SortFunc(usual, func(a, b *Entry) int { return a.At.Compare(b.At) })
	w := &waits{}
	for _, e := range usual {
		at := first[e.ID]
		w.written, w.came = append(w.written, e.At), append(w.came, at)
		if !at.IsZero() {
			w.arrived = append(w.arrived, at)
		}
	}
	slices.SortFunc(w.arrived, time.Time.Compare)
	return w
}

func until(times []time.Time, t time.Time) int {
	n, _ := slices.BinarySearchFunc(times, t, time.Time.Compare)
	return n
}

// at is how many were in flight at a time.
func (w *waits) at(t time.Time) int { return max(0, until(w.written, t)-until(w.arrived, t)) }

// recovery is how long after a time nine tenths of what was in flight then had arrived: a tenth may be of keys that wait for an
// operator, or for the next fault to end. some: there was something in flight, and it arrived.
func (w *waits) recovery(t time.Time) (took time.Duration, some bool) {
	const longest = time.Minute // what was written before that waits for something else
	var came []time.Time
	waiting := 0
	for i := until(w.written, t) - 1; i >= 0 && w.written[i].After(t.Add(-longest)); i-- {
		if at := w.came[i]; at.IsZero() || at.After(t) {
			waiting++
			if !at.IsZero() {
				came = append(came, at)
			}
		}
	}
	nth := (waiting*9 + 9) / 10
	if waiting == 0 || len(came) < nth {
		return 0, false
	}
	slices.SortFunc(came, time.Time.Compare)
	return came[nth-1].Sub(t), true
}

// judge decides, and says so in a line.
func (c *checking) judge() {
	faults, idle := 0, 0
	for _, k := range c.ByKind {
		idle += k.Idle
	}
	for i := range c.h.Faults {
		if f := &c.h.Faults[i]; !f.Observed && f.Error == "" {
			faults++
		}
	}
	var wrong []string
	fails := func(is bool, format string, args ...any) {
		if is {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	fails(c.Lost > 0, "%d lost", c.Lost)
	fails(c.Phantom > 0, "%d never committed", c.Phantom)
	fails(c.Altered > 0, "%d altered", c.Altered)
	fails(c.Reordered > 0, "%d out of order", c.Reordered)
	fails(c.Unaudited > 0, "%d discards that the audit and the operator disagree about", c.Unaudited)
	fails(c.Unattributed > 0, "%d duplicates without a reason", c.Unattributed)
	fails(c.Meta.NoDuplicates && c.Duplicates > 0, "%d duplicates of a sink that promises none", c.Duplicates)
	fails(c.Duplicates > c.MostByFaults, "%d duplicates, more than the windows of all faults, %d", c.Duplicates, c.MostByFaults)
	fails(c.Committed == 0 || c.Received == 0, "nothing was committed, or nothing received: nothing is shown")
	fails(faults == 0, "no fault was injected: nothing is shown")
	fails(faults > 0 && idle*10 > faults, "%d of %d faults met nothing in flight", idle, faults)
	fails(c.Meta.Undrained != "", "not drained: %s", c.Meta.Undrained)
	fails(c.Meta.Left["backlog"]+c.Meta.Left["parked"]+c.Meta.Left["dead"] > 0, "left in the outbox: %v", c.Meta.Left)
	for _, broken := range c.Meta.Broken {
		fails(true, "%s", broken)
	}
	c.OK = len(wrong) == 0
	c.Verdict = c.line(faults, wrong)
}

func (c *checking) line(faults int, wrong []string) string {
	var causes []string
	for _, cause := range slices.Sorted(maps.Keys(c.ByCause)) {
		causes = append(causes, fmt.Sprintf("%s %d", cause, c.ByCause[cause]))
	}
	causes = append(causes, fmt.Sprintf("unattributed %d", c.Unattributed))
	word := "PASS"
	if !c.OK {
		word = "FAIL"
	}
	text := fmt.Sprintf("%s %s+%s seed %d, %v: %d committed, %d received, %d lost, %d phantom, %d altered, %d reordered, %d duplicates (%s), %d discarded, %d faults, drained in %v",
		word, c.Meta.Store, c.Meta.Broker, c.Meta.Seed, time.Duration(c.Meta.DurationMS)*time.Millisecond, c.Committed, c.Received,
		c.Lost, c.Phantom, c.Altered, c.Reordered, c.Duplicates, strings.Join(causes, ", "), c.Discarded, faults,
		(time.Duration(c.Meta.DrainMS) * time.Millisecond).Round(100*time.Millisecond))
	if !c.OK {
		text += ": " + strings.Join(wrong, "; ")
	}
	return text
}

// Summary is the report without its timeline.
func (r Report) Summary() Report {
	r.Faults, r.Examples = nil, nil
	return r
}

// Table says in lines which kinds of faults there were, what was in flight, and how long it took to recover.
func (r Report) Table() []string {
	lines := []string{fmt.Sprintf("%-22s %5s %9s %9s %12s %12s", "fault", "times", "in flight", "at most", "recovered in", "at most")}
	for _, kind := range slices.Sorted(maps.Keys(r.ByKind)) {
		k := r.ByKind[kind]
		line := fmt.Sprintf("%-22s %5d %9d %9d %12v %12v", kind, k.Count, k.InFlightMedian, k.InFlightMost,
			time.Duration(k.RecoveryMedian)*time.Millisecond, time.Duration(k.RecoveryMost)*time.Millisecond)
		if k.Failed > 0 {
			line += fmt.Sprintf("  (%d could not be done)", k.Failed)
		}
		lines = append(lines, line)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Meta.NotInjected)) {
		lines = append(lines, fmt.Sprintf("%-22s not injected: %s", kind, r.Meta.NotInjected[kind]))
	}
	return lines
}

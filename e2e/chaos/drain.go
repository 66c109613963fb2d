package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// drain makes everything sound, stops the writers, waits until all that was committed has arrived or was discarded, stops the
// relays, and gathers what there is to know.
func (r *run) drain(ctx context.Context) (*History, error) {
	from := time.Now()
	if err := r.heal(ctx); err != nil {
		return nil, err
	}
	h := &History{}
	var err error
	if h.Ledger, err = r.database.ledger(ctx); err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	r.say("the faults are over; waiting for the rest of %d messages", len(h.Ledger))
	missing, err := r.await(ctx, h.Ledger)
	if err != nil {
		return nil, err
	}
	r.meta.DrainMS = time.Since(from).Milliseconds()
	r.settle(ctx, missing)
	r.sample()
	for _, p := range r.relays {
		if err := p.terminate(30 * time.Second); err != nil {
			r.broken("%v, though everything was sound", err)
		}
	}
	patient, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := r.broker.complete(patient); err != nil {
		r.broken("%v", err)
	}
	if h.Audit, err = r.database.discards(ctx); err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	h.Faults, h.Acts = slices.Concat(r.faults, r.readLogs(h.Ledger)), r.acts
	slices.SortStableFunc(h.Faults, func(a, b Fault) int { return a.At.Compare(b.At) })
	h.Meta = r.meta
	r.broker.collected.mu.Lock()
	defer r.broker.collected.mu.Unlock()
	h.Arrivals = r.broker.collected.arrivals
	return h, nil
}

// heal ends what is left of the faults, and the writers.
func (r *run) heal(ctx context.Context) error {
	for _, p := range r.relays {
		for _, l := range []*Link{p.database, p.broker} {
			if l != nil {
				l.Heal()
			}
		}
	}
	for _, w := range r.writers {
		if w.link != nil {
			w.link.Heal()
		}
		if err := w.finish(30 * time.Second); err != nil {
			r.broken("writer %v", err)
		}
	}
	patient, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if _, err := r.database.answers(patient); err != nil {
		return err
	}
	if err := r.database.writersGone(patient); err != nil {
		return err
	}
	if err := r.scale(max(r.wanted, firstRelays)); err != nil {
		return err
	}
	return r.resumeAll(patient)
}

// await waits until every message of the ledger has arrived or was discarded, and returns what has not when nothing has come
// for long. An operator discards what the broker never takes.
func (r *run) await(ctx context.Context, ledger []Entry) (missing []Entry, err error) {
	const quiet = 30 * time.Second
	missing = slices.Clone(ledger)
	last, said := time.Now(), time.Now()
	for {
		dead, err := r.discardDead(ctx)
		if err != nil {
			r.say("discarding: %v", err)
		}
		gone, err := r.discarded(ctx)
		if err != nil {
			r.say("reading the audit: %v", err)
		}
		before := len(missing)
		missing = slices.DeleteFunc(missing, func(e Entry) bool { return gone[e.ID] || r.broker.collected.has(e.ID) })
		if len(missing) == 0 {
			return nil, nil
		}
		if len(missing) < before || dead > 0 {
			last = time.Now()
		}
		if time.Since(last) > quiet {
			r.mu.Lock()
			r.meta.Undrained = fmt.Sprintf("%d messages are missing, and none came for %v", len(missing), quiet)
			r.mu.Unlock()
			return missing, nil
		}
		if time.Since(said) > 2*time.Second {
			r.say("%d of %d messages are still to come", len(missing), len(ledger))
			said = time.Now()
		}
		if !pause(ctx, 50*time.Millisecond) {
			return missing, ctx.Err()
		}
	}
}

// discarded are the messages that the outbox has in its audit: of an act whose answer was lost, nobody else knows.
func (r *run) discarded(ctx context.Context) (map[string]bool, error) {
	ids, err := r.database.discards(ctx)
	all := map[string]bool{}
	for _, id := range ids {
		all[id] = true
	}
	return all, err
}

// settle waits until the outbox says, too, that nothing is left, and notes where what is missing stands.
func (r *run) settle(ctx context.Context, missing []Entry) {
	patient, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		backlog, parked, dead, err := r.database.waiting(patient)
		if err == nil {
			r.mu.Lock()
			r.meta.Left = map[string]int64{"backlog": backlog, "parked": parked, "dead": dead}
			r.mu.Unlock()
		}
		if err == nil && backlog+parked+dead == 0 && len(missing) == 0 || !pause(patient, 50*time.Millisecond) {
			break
		}
	}
	for i := range missing {
		if i < 20 {
			r.say("missing: %s, message %d of key %q: %s", missing[i].ID, missing[i].N, missing[i].Key, r.database.standing(ctx, missing[i].ID))
		}
	}
}

// tookOver are lines of the log that say that a lease has run out.
var tookOver = []string{
	"another relay has taken over: joining again", "taking over an expired relay of the same name",
	"taking over an expired relay of the sink", "took over relays whose lease has ended",
}

// readLogs finds in the relays' logs what no fault did directly. Nothing that a relay may do: a panic; and a dead letter of a message
// that the broker takes when it is sound, because attempts are without end here, and an outage costs none.
func (r *run) readLogs(ledger []Entry) (observed []Fault) {
	sound := map[string]bool{}
	for i := range ledger {
		sound[ledger[i].ID] = ledger[i].Kind != Poison && ledger[i].Kind != Oversize
	}
	dead := map[string]int{}
	defer func() {
		for _, code := range slices.Sorted(maps.Keys(dead)) {
			r.meta.Broken = append(r.meta.Broken, fmt.Sprintf("%d dead letters that nothing was wrong with: %s", dead[code], code))
		}
	}()
	for _, p := range r.relays {
		text, err := os.ReadFile(p.log)
		if errors.Is(err, os.ErrNotExist) { // it never ran
			continue
		}
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			var said struct {
				Time time.Time `json:"time"`
				Text string    `json:"msg"`
				ID   string    `json:"id"`
				Code string    `json:"code"`
			}
			if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
				if line := lines.Text(); strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
					r.meta.Broken = append(r.meta.Broken, p.name+": "+line)
				}
				continue
			}
			if said.Text == "dead letter" && sound[said.ID] {
				dead[said.Code]++
			}
			if slices.Contains(tookOver, said.Text) {
				observed = append(observed, Fault{
					Kind: string(TookOver), Target: p.name, At: said.Time, End: said.Time, Detail: said.Text, Relays: 1, Observed: true,
				})
			}
		}
	}
	return observed
}

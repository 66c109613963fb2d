package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// RunOnce makes one pass over every sink and returns: what was committed before it began is published, parked or dead by
// then, and what was due for its next try before it began was tried once, with what waits behind it. All of that is settled,
// and the leases are given back. What comes meanwhile is left for the next pass, but for what is read along with the rest, so
// a pass ends however much is written.
//
// Partitions that another live relay holds are that relay's to publish. One that has not renewed its lease since the pass
// began may have died: the pass waits until it has renewed or its lease is over, and then does its part as well.
//
// It returns nil when the pass is done. It gives up, and leaves what is left to the next one, where the broker takes nothing
// for PublishTimeout and Breaker.Max of the sink (onward/broker-unavailable; the other sinks go on to their end), where the
// database does not answer for Lease (onward/database-unavailable), and where a live relay has the name (store.NameTaken).
// When ctx ends first it stops as Run does and returns ctx's error. Otherwise errors are those of Run. Call either, once.
func (r *Relay) RunOnce(ctx context.Context) error {
	r.once = true
	if err := r.Run(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("stopped before the end of the pass: %w", err)
	}
	r.retainOnce(ctx)
	return nil
}

// gaveUp is the end of a sink's pass that others of the relay have no part in.
type gaveUp struct{ err error }

func (e gaveUp) Error() string { return e.err.Error() }
func (e gaveUp) Unwrap() error { return e.err }

const runAgain = "what was not published stays in the outbox: run it again when that is mended"

func (t *turn) brokerAway() error {
	return gaveUp{&outbox.Error{
		Code: broker.CodeUnavailable, Op: "one pass over sink " + t.feed.sink.Name, Hint: runAgain, Err: t.cause,
		Detail: fmt.Sprintf("the broker took nothing for %v", t.feed.patience()),
	}}
}

// patience is that of the machine for a broker that takes nothing.
func (f *feed) patience() time.Duration {
	rules := f.rules.Filled()
	return rules.PublishTimeout + rules.Breaker.Max
}

// databaseAway is the end of a pass whose database has not answered for a lease; nil: that is not so.
func (r *Relay) databaseAway(database *trouble) error {
	if !r.once || len(database.calls) == 0 || time.Since(database.since) < r.config.Lease {
		return nil
	}
	return &outbox.Error{
		Code: "onward/database-unavailable", Op: "one pass", Hint: runAgain, Err: database.last,
		Detail: fmt.Sprintf("the database did not answer for %v", r.config.Lease),
	}
}

// nameStays reports whether a name is held for longer than its holder's lease had left when the pass first asked.
func (r *Relay) nameStays(taken *store.NameTaken, over *time.Time) bool {
	ends := time.Now().Add(taken.Until)
	if over.IsZero() {
		*over = ends
	}
	return r.once && ends.Sub(*over) > r.config.Lease/10
}

// ticked tells the observer, and ends a pass whose database is away.
func (t *turn) ticked() error {
	t.round()
	if t.leased && time.Since(t.start) > time.Second {
		t.feed.database.answered(loadSession)
	}
	return t.feed.relay.databaseAway(&t.feed.database)
}

// noteUnattended says what a pass waits for.
func (t *turn) noteUnattended(l store.Lease) {
	if n := l.Unattended; t.feed.relay.once && n > 0 && n != t.unattended {
		t.feed.log.Info("waiting for partitions whose relay may have died: it renews its lease, or the lease ends", "partitions", n)
	}
	t.unattended = l.Unattended
}

// noteDone says what the pass has done.
func (t *turn) noteDone() {
	if !t.feed.relay.once || t.stopping.Load() {
		return
	}
	c := t.machine.Counters()
	t.feed.log.Info("one pass is done", "published", c.Published, "parked", c.Parked, "dead", c.Dead,
		"partitions", len(t.owned), "of_other_relays", t.feed.partitions-len(t.owned))
}

// isGaveUp reports an end that is no reason to stop the other sinks.
func isGaveUp(err error) bool {
	var e gaveUp
	return errors.As(err, &e)
}

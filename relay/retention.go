package relay

import (
	"context"
	"time"

	"github.com/onwardhq/onward/store"
)

// AtOnce is a Retention.Published of no time at all.
const AtOnce time.Duration = -1

// Retention says what may be removed from the outbox. Nothing is, before every registered sink has passed it, whether a relay
// serves the sink or not. Of the relays of an outbox the oldest one looks after it, by its own settings.
type Retention struct {
	// Published is how long messages stay in the log after they were written, once every sink has passed them. 0: 24h; AtOnce:
	// no longer than a sink needs them.
	Published time.Duration
	// Dead is how long dead letters stay; 0: until somebody requeues or discards them. Then they are discarded, which is audited,
	// and their keys go on. At least 1m.
	Dead time.Duration
}

// leastDead leaves people a moment.
const leastDead = time.Minute

const usualRetention = 24 * time.Hour

func (c *Retention) fill() { def(&c.Published, usualRetention) }

func (c *Retention) validate(f *faults) {
	f.if_(c.Published < AtOnce, "Retention.Published is %v: want a duration, or AtOnce", c.Published)
	f.if_(c.Dead != 0 && c.Dead < leastDead, "Retention.Dead is %v: at least 1m, or 0 for ever", c.Dead)
}

// published is the store's word for it: 0 is at once.
func (c *Retention) published() time.Duration { return max(c.Published, 0) }

// round is how long after one round of retention the next one begins: short against the retention itself.
func (c *Retention) round(removed int) time.Duration {
	switch {
	case c.Published != AtOnce:
		return min(max(c.Published/256, 50*time.Millisecond), time.Minute)
	case removed > 0:
		return 100 * time.Millisecond
	}
	return time.Second
}

// retain looks after retention until ctx ends. Half of the time, at the most, it keeps the database busy.
func (r *Relay) retain(ctx context.Context) {
	retainer, ok := r.config.Store.(store.Retainer)
	if !ok {
		return
	}
	c := &r.config.Retention
	database := newTrouble(r.log)
	var told retained
	failed := time.Duration(0)
	inRound := 0
	for wait := min(c.round(0), time.Second); sleep(ctx, wait); {
		id := r.registered()
		if id.IsZero() {
			continue
		}
		began := time.Now()
		done, err := retainer.Retain(ctx, store.Retention{Relay: id, Published: c.published(), Dead: c.Dead})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failed = min(max(2*failed, 100*time.Millisecond), 5*time.Second)
			database.failed("retain", "retention waits for the database: nothing is removed", err, "again_in", failed)
			wait = failed
			continue
		}
		database.answered("retain")
		failed = 0
		r.removed.Add(int64(done.Messages))
		inRound += done.Messages
		told.add(done, time.Since(began))
		if done.More {
			wait = max(time.Since(began), time.Millisecond)
			continue
		}
		told.say(r)
		wait, inRound = c.round(inRound), 0
	}
}

// retained is what was removed since it was said.
type retained struct {
	messages, dead int
	took           time.Duration
	said           time.Time
}

func (t *retained) add(done store.Retained, took time.Duration) {
	t.messages += done.Messages
	t.dead += done.Dead
	t.took += took
}

// muchRemoved is what is worth a line, at most once a minute; discarded dead letters always are.
const muchRemoved = 10_000

func (t *retained) say(r *Relay) {
	if t.dead == 0 && (t.messages < muchRemoved || time.Since(t.said) < time.Minute) {
		return
	}
	r.log.Info("retention removed messages", "messages", t.messages, "dead_letters_discarded", t.dead, "busy_for", t.took.Round(time.Millisecond))
	*t = retained{said: time.Now()}
}

// startRetention looks after retention until stop is called, or ctx ends; stop waits.
func (r *Relay) startRetention(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.retain(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// passRetention is how long a pass looks after retention, at the most: the next one goes on.
const passRetention = 10 * time.Second

// retainOnce looks after retention at the end of a pass: where passes are all that ever runs, nobody else does. Whoever lives
// besides may be at it; the store lets one at a time.
func (r *Relay) retainOnce(ctx context.Context) {
	retainer, ok := r.config.Store.(store.Retainer)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, passRetention)
	defer cancel()
	var told retained
	for more := true; more; {
		began := time.Now()
		done, err := retainer.Retain(ctx, store.Retention{Published: r.config.Retention.published(), Dead: r.config.Retention.Dead})
		if err != nil {
			if ctx.Err() == nil {
				r.log.Warn("retention was left to the next pass", "error", err)
			}
			break
		}
		told.add(done, time.Since(began))
		more = done.More
	}
	told.say(r)
}

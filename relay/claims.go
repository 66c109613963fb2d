package relay

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// claims has a publisher that is a broker.Claimer claim each partition before its first message, in this order: the database
// gives the partition, the publisher claims it, the database says once more that it is ours, messages are handed over. A
// relay that sleeps anywhere in between finds either that it owns the partition no longer, or that its claim is void: whoever
// took the partition claimed it later. nil does nothing.
type claims struct {
	claimer broker.Claimer

	mu    sync.Mutex
	owned map[int]int64 // as the database said last: the epoch of each partition
	held  map[int]int64 // claimed, and owned afterwards
	begun int           // renewals
	ended int           // the number of the last one that was answered
	heard chan struct{} // closed at the next answer

	now chan struct{} // a renewal is wanted
}

func (f *feed) newClaims() *claims {
	claimer, ok := f.sink.Publisher.(broker.Claimer)
	if !ok || !f.rules.Claims {
		return nil
	}
	return &claims{claimer: claimer, held: map[int]int64{}, heard: make(chan struct{}), now: make(chan struct{}, 1)}
}

// asked: the database is about to be asked what is owned.
func (c *claims) asked() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun++
}

// answered is what the database said to the question that was asked last.
func (c *claims) answered(owned []store.Owned) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owned, c.ended = make(map[int]int64, len(owned)), c.begun
	for _, o := range owned {
		c.owned[o.Partition] = o.Epoch
	}
	for partition, epoch := range c.held {
		if c.owned[partition] != epoch {
			delete(c.held, partition)
		}
	}
	close(c.heard)
	c.heard = make(chan struct{})
}

// wanted is readable when a renewal is wanted at once; nil: never.
func (c *claims) wanted() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.now
}

// lost takes a claim back that the publisher has lost.
func (c *claims) lost(e *broker.Envelope, r broker.Result) {
	if c == nil || r.Code != broker.CodeUnclaimed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, e.Partition)
}

// admit claims what has to be claimed for a batch, with all else that is owned and not claimed. It returns the indexes of the
// messages that may be handed over, and why the others may not.
func (c *claims) admit(ctx context.Context, batch []broker.Envelope) (indexes []int, why error) {
	if missing := c.missing(batch); len(missing) > 0 {
		why = c.claim(ctx, missing)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range batch {
		if epoch, ok := c.held[batch[i].Partition]; ok && epoch == batch[i].Epoch {
			indexes = append(indexes, i)
		}
	}
	return indexes, why
}

// missing are the partitions to be claimed, if the batch has one of them.
func (c *claims) missing(batch []broker.Envelope) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []int
	for i := range batch {
		p := batch[i].Partition
		if epoch, ok := c.held[p]; (!ok || epoch != batch[i].Epoch) && !slices.Contains(missing, p) {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	for p, epoch := range c.owned {
		if held, ok := c.held[p]; (!ok || held != epoch) && !slices.Contains(missing, p) {
			missing = append(missing, p)
		}
	}
	slices.Sort(missing)
	return missing
}

// claim has partitions claimed, and asks the database afterwards which of them are owned.
func (c *claims) claim(ctx context.Context, partitions []int) error {
	if err := c.claimer.Claim(ctx, partitions); err != nil {
		return err
	}
	c.mu.Lock()
	after := c.begun // a renewal that has begun already says what was true before
	for c.ended <= after {
		heard := c.heard
		c.mu.Unlock()
		nudge(c.now)
		select {
		case <-heard:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	for _, p := range partitions {
		if epoch, ok := c.owned[p]; ok {
			c.held[p] = epoch
		}
	}
	return nil
}

// settled passes on what the database knows as published.
func (c *claims) settled(published []broker.Published, fenced []int) {
	if c == nil || len(published) == 0 {
		return
	}
	if len(fenced) > 0 {
		published = slices.DeleteFunc(slices.Clone(published), func(m broker.Published) bool { return slices.Contains(fenced, m.Partition) })
	}
	c.claimer.Settled(published)
}

// claimAgain is how long the sink waits before a partition is claimed that turned out to be another relay's, or was lost: until
// the database has said so to the machine.
const claimAgain = 20 * time.Millisecond

var errNotOurs = &outbox.Error{Code: broker.CodeUnclaimed, Detail: "the relay does not own the partition any more"}

// admitted is what of a batch may be handed over, and where in the batch it stands; the rest is answered.
func (c *call) admitted(ctx context.Context) (batch []broker.Envelope, index func(int) int) {
	indexes, why := c.turn.claims.admit(ctx, c.batch)
	if len(indexes) < len(c.batch) {
		c.refuse(indexes, why)
	}
	for _, i := range indexes {
		batch = append(batch, c.batch[i])
	}
	return batch, func(i int) int { return indexes[i] }
}

// refuse answers what of a batch may not be handed over.
func (c *call) refuse(indexes []int, why error) {
	r := broker.Result{Outcome: broker.Throttled, Code: broker.CodeUnclaimed, Err: errNotOurs, After: claimAgain}
	if why != nil {
		r = broker.Result{Outcome: broker.Unavailable, Code: cmp.Or(outbox.CodeOf(why), broker.CodeUnavailable), Err: why}
	}
	for i := range c.batch {
		if _, ok := slices.BinarySearch(indexes, i); !ok {
			c.done(i, r)
		}
	}
}

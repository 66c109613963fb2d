package kafka

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// transactor publishes in transactions, one after the other: what came in meanwhile goes into the next. With the messages of a
// partition of the outbox goes a record of the progress topic that says which of them are published and not known to be
// settled, so that whoever publishes the partition later knows it too, exactly if the messages are there. One goroutine, that
// of run, does all of it; the publisher's mutex guards what it is given.
type transactor struct {
	p    *Publisher
	id   string // the transactional id; each publisher has its own
	wake chan struct{}

	queue   []*flight
	claims  []*claim
	settled []broker.Published

	// of run alone
	producer    *producer
	coordinator *kgo.Broker
	next        map[*lane]int32 // sequence numbers
	progress    progress
	held        map[int]*holding // by partition of the outbox: those that are claimed
	doubt       *transaction     // it may be committed
	dangling    bool             // there may be an open transaction,
	open        *producer        // of this producer
	trouble     trouble
	tries       int
	patient     bool              // what is in doubt is sent again if it is not there
	at          func(step string) // for tests: what is about to be done
}

// holding is what is known of a claimed partition.
type holding struct {
	now ledger // published here
	old ledger // by others, before
}

func (h *holding) has(id outbox.ID) bool {
	_, now := h.now[id]
	_, old := h.old[id]
	return now || old
}

// claim is a call of Claim.
type claim struct {
	ctx        context.Context
	partitions []int
	done       chan error
	last       error
}

// transaction is what goes out at once.
type transaction struct {
	flights    []*flight // those of callers, in order
	parcels    []*parcel
	byLane     map[*lane]*parcel
	lanes      map[string]*lane // of keys
	ids        map[outbox.ID]bool
	bytes      int
	committing bool // the publisher's mutex guards it: its end has been asked for
}

// parcel is what goes to one partition of Kafka.
type parcel struct {
	lane    *lane
	flights []*flight
	batches []*batch
}

// Bounds of one transaction.
const (
	mostRecords = 10_000
	mostBytes   = 16 << 20
)

func newTransactor(p *Publisher) *transactor {
	c := p.cfg.Transactions
	return &transactor{
		p: p, id: c.ID + "-" + outbox.NewID().String(), wake: make(chan struct{}, 1), held: map[int]*holding{},
		progress: progress{p: p, topic: c.Topic, base: newView(c.ID)}, at: func(string) {},
	}
}

func (t *transactor) nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Claim makes the publisher the one that publishes the messages of these partitions of the outbox; see broker.Claimer. Without
// Config.Transactions it does nothing.
func (p *Publisher) Claim(ctx context.Context, partitions []int) error {
	if p.tx == nil || len(partitions) == 0 {
		return nil
	}
	c := &claim{ctx: ctx, partitions: slices.Clone(partitions), done: make(chan error, 1)}
	p.mu.Lock()
	if p.closing {
		p.mu.Unlock()
		return &outbox.Error{Code: broker.CodeUnavailable, Op: "claim partitions", Detail: "the publisher is closed"}
	}
	p.tx.claims = append(p.tx.claims, c)
	p.mu.Unlock()
	p.tx.nudge()
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &outbox.Error{Code: broker.CodeUnavailable, Op: "claim partitions", Err: errors.Join(context.Cause(ctx), c.last)}
}

// Settled lets the publisher forget messages; see broker.Claimer.
func (p *Publisher) Settled(messages []broker.Published) {
	if p.tx == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tx.settled = append(p.tx.settled, messages...)
}

// run is the transactor's goroutine.
func (t *transactor) run() {
	defer t.leave()
	for {
		for t.step() {
		}
		select {
		case <-t.wake:
		case <-t.p.life.Done():
			t.refuseClaims()
			return
		}
	}
}

func (t *transactor) refuseClaims() {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	for _, c := range t.claims {
		c.done <- &outbox.Error{Code: broker.CodeUnavailable, Op: "claim partitions", Detail: "the publisher is closed", Err: c.last}
	}
	t.claims = nil
}

// step does the next thing, and reports whether there may be another one.
func (t *transactor) step() (more bool) {
	if t.p.life.Err() != nil {
		return false
	}
	claims, some := t.take()
	if !some && len(claims) == 0 && t.doubt == nil && !t.dangling {
		return false
	}
	if t.producer == nil {
		if err := t.begin(); err != nil {
			t.failed(err)
			return true
		}
	}
	if len(claims) > 0 {
		if err := t.claimAll(claims); err != nil {
			t.failed(err)
		}
		return true
	}
	tx := t.gather()
	if tx == nil {
		return false
	}
	t.transact(tx)
	return true
}

// take returns the claims that are waited for, and whether messages are.
func (t *transactor) take() (claims []*claim, some bool) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	for _, m := range t.settled {
		if h := t.held[m.Partition]; h != nil {
			delete(h.now, m.ID)
			delete(h.old, m.ID)
		}
	}
	t.settled = nil
	t.claims = slices.DeleteFunc(t.claims, func(c *claim) bool { return c.ctx.Err() != nil })
	return slices.Clone(t.claims), len(t.queue) > 0
}

// begin makes a new producer, which ends what the one before has left, and looks who has claimed what and what of a transaction
// in doubt is there.
func (t *transactor) begin() error {
	ctx, cancel := context.WithTimeout(t.p.life, askTime)
	defer cancel()
	made, at, err := t.p.initProducer(ctx, t.id)
	if err != nil {
		return err
	}
	v, err := t.progress.read(ctx)
	if err != nil {
		return err
	}
	t.producer, t.coordinator, t.next, t.dangling = made, at, map[*lane]int32{}, false
	return t.review(v)
}

// review takes over what the progress topic says: partitions that somebody else has claimed are not ours any more.
func (t *transactor) review(v *view) error {
	for partition := range t.held {
		if v.owners[partition][t.id] != isLive {
			delete(t.held, partition)
		}
	}
	tx := t.doubt
	if tx == nil {
		return nil
	}
	known := map[int]ledger{}
	for _, f := range tx.flights {
		if known[f.partition] == nil {
			l, err := v.ledger(f.partition, time.Now())
			if err != nil {
				return err
			}
			known[f.partition] = l
		}
	}
	t.doubt = nil
	t.p.mu.Lock()
	defer t.p.release()
	t.p.now = time.Now()
	there := map[outbox.ID]bool{}
	for _, f := range tx.flights { // of a partition that is not ours any more, whoever has it may have published it
		_, published := known[f.partition][f.id]
		there[f.id] = published && t.held[f.partition] != nil
	}
	t.settle(tx, func(f *flight) bool { return there[f.id] })
	if !t.patient {
		t.failAll(t.trouble.why, t.trouble.cause)
	}
	return nil
}

// failAll answers all that waits. The publisher's mutex is held.
func (t *transactor) failAll(why situation, cause error) {
	for _, f := range t.queue {
		if f.state == held {
			t.p.fail(f, why.result(cause))
		}
	}
	t.queue = nil
}

// settle answers the messages of a transaction that are there; the others go back into the queue. The publisher's mutex is held.
func (t *transactor) settle(tx *transaction, there func(f *flight) bool) {
	places := tx.places(t.p)
	back := make([]*flight, 0, len(tx.flights))
	for _, f := range tx.flights {
		f.tx = nil
		switch {
		case there(f):
			if h := t.held[f.partition]; h != nil {
				h.now[f.id] = t.p.now
			}
			if f.state != over {
				t.p.end(f, broker.Result{Outcome: broker.Accepted, Position: places[f]})
			}
		case f.state != over:
			f.state = held
			back = append(back, f)
		}
	}
	t.queue = append(back, t.queue...)
}

// places are the positions of a transaction's messages.
func (tx *transaction) places(p *Publisher) map[*flight]string {
	places := make(map[*flight]string, len(tx.flights))
	for _, one := range tx.parcels {
		if one.lane.topic.name == p.cfg.Transactions.Topic {
			continue
		}
		for _, b := range one.batches {
			for i, f := range b.flights {
				if b.offset >= 0 {
					places[f] = strconv.Itoa(int(b.lane.partition)) + ":" + strconv.FormatInt(b.offset+int64(i), 10)
				}
			}
		}
	}
	return places
}

// transact sends a transaction and commits it.
func (t *transactor) transact(tx *transaction) {
	ctx, cancel := context.WithTimeout(t.p.life, t.p.cfg.Transactions.Timeout)
	defer cancel()
	t.track(tx)
	if err := t.send(ctx, tx); err != nil {
		t.undo(tx, err)
		return
	}
	t.p.mu.Lock()
	tx.committing = !slices.ContainsFunc(tx.flights, func(f *flight) bool { return f.state == over })
	t.p.mu.Unlock()
	if !tx.committing { // somebody has heard that a message was not sent
		t.undo(tx, nil)
		return
	}
	t.at("commit")
	err := t.commit(ctx)
	t.at("committed")
	if err != nil {
		t.producer, t.doubt = nil, tx
		t.failed(err)
		return
	}
	t.dangling, t.trouble, t.tries = false, trouble{}, 0
	t.p.mu.Lock()
	defer t.p.release()
	t.p.now = time.Now()
	for _, one := range tx.parcels {
		ln := one.lane
		ln.trouble, ln.tries, ln.most = trouble{}, 0, min(2*ln.most, batchRecords)
	}
	t.settle(tx, func(*flight) bool { return true })
}

// track adds what the transaction says of progress.
func (t *transactor) track(tx *transaction) {
	touched := map[int][]outbox.ID{}
	for _, f := range tx.flights {
		touched[f.partition] = append(touched[f.partition], f.id)
	}
	now := time.Now()
	entries := make([]entry, 0, len(touched))
	for partition, ids := range touched {
		h := t.held[partition]
		h.now.trim(now)
		l := make(ledger, len(h.now)+len(ids))
		for id, at := range h.now {
			l[id] = at
		}
		for _, id := range ids {
			l[id] = now
		}
		entries = append(entries, entry{nowKey(t.progress.base.name, partition), l.append(nil)})
	}
	tx.note(t.p, entries)
}

// note adds records of the progress topic to a transaction.
func (tx *transaction) note(p *Publisher, entries []entry) {
	p.mu.Lock()
	lane := p.topics[p.cfg.Transactions.Topic].lanes[0]
	p.mu.Unlock()
	one := &parcel{lane: lane}
	at := time.Now().UnixMilli()
	for _, e := range entries {
		out := broker.Outgoing{Key: e.key, Payload: e.value}
		one.flights = append(one.flights, &flight{body: appendBody(nil, &out, e.value == nil), at: at})
	}
	tx.parcels = append(tx.parcels, one)
}

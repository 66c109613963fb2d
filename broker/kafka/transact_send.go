package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// refusal is why a batch was not taken.
type refusal struct {
	batch *batch // nil: the partition
	lane  *lane
	why   situation
	kind  kind
	cause error
}

func (r *refusal) Error() string { return r.cause.Error() }

// send adds the partitions of a transaction and sends its batches: of each partition one at a time.
func (t *transactor) send(ctx context.Context, tx *transaction) error {
	t.dangling, t.open = true, t.producer
	lanes := make([]*lane, len(tx.parcels))
	for i, one := range tx.parcels {
		lanes[i] = one.lane
	}
	refused, err := t.addPartitions(ctx, lanes)
	if err != nil {
		return err
	}
	for ln, code := range refused {
		cause := kerr.ErrorForCode(code)
		why, what := judge(code, kerr.IsRetriable(cause))
		return &refusal{lane: ln, why: why, kind: what, cause: fmt.Errorf("kafka: topic %s, partition %d: %w", ln.topic.name, ln.partition, cause)}
	}
	t.at("send")
	rest := make(map[*parcel][]*flight, len(tx.parcels))
	for _, one := range tx.parcels {
		rest[one] = one.flights
	}
	for len(rest) > 0 {
		nodes := map[int32][]*batch{}
		for one, flights := range rest {
			b, n := t.batch(one.lane, flights)
			one.batches = append(one.batches, b)
			if rest[one] = flights[n:]; len(rest[one]) == 0 {
				delete(rest, one)
			}
			nodes[b.leader] = append(nodes[b.leader], b)
		}
		if err := t.sendAll(ctx, nodes); err != nil {
			return err
		}
	}
	return nil
}

// batch is the next one of a partition, and how many messages it has.
func (t *transactor) batch(ln *lane, flights []*flight) (*batch, int) {
	t.p.mu.Lock()
	limit, leader := batchBytes, ln.leader
	if ln.topic.limit > 0 {
		limit = min(limit, ln.topic.limit)
	}
	t.p.mu.Unlock()
	size, n := batchOverhead, 0
	for _, f := range flights {
		size += len(f.body) + recordOverhead
		if n > 0 && (size > limit || n >= batchRecords) {
			break
		}
		n++
	}
	b := &batch{lane: ln, leader: leader, flights: flights[:n], offset: -1, seq: sequence{t.producer.id, t.producer.epoch, t.next[ln], true}}
	b.records = encode(b.flights, b.seq, t.p.compressor)
	t.next[ln] = int32((int64(t.next[ln]) + int64(n)) & 0x7fffffff) //nolint:gosec // it begins again at 0
	return b, n
}

// sendAll sends batches to their leaders, and returns what the first of them that was refused says.
func (t *transactor) sendAll(ctx context.Context, nodes map[int32][]*batch) error {
	var group sync.WaitGroup
	var mu sync.Mutex
	var first *refusal
	for node, batches := range nodes {
		group.Go(func() {
			r := t.sendTo(ctx, node, batches)
			mu.Lock()
			defer mu.Unlock()
			if r != nil && (first == nil || first.kind == again) { // what concerns a message before what concerns a broker
				first = r
			}
		})
	}
	group.Wait()
	if first == nil {
		return nil
	}
	return first
}

func (t *transactor) sendTo(ctx context.Context, node int32, batches []*batch) *refusal {
	request := t.p.newRequest(batches)
	request.TransactionID, request.most = &t.id, 11
	response, err := t.p.client.Broker(int(node)).Request(ctx, request)
	produced, ok := response.(*kmsg.ProduceResponse)
	if err == nil && !ok {
		err = errStrangeAnswer
	}
	if err != nil {
		return &refusal{lane: batches[0].lane, why: notConnected, kind: again, cause: fmt.Errorf("kafka: broker %d: %w", node, err)}
	}
	var first *refusal
	for _, b := range batches {
		part := partOf(produced, b)
		if part == nil {
			return &refusal{batch: b, lane: b.lane, why: serverFailed, kind: again, cause: errNoPart}
		}
		cause := kerr.ErrorForCode(part.ErrorCode)
		if cause == nil {
			b.offset = part.BaseOffset
			continue
		}
		why, what := judge(part.ErrorCode, kerr.IsRetriable(cause))
		switch what {
		case stored:
			continue
		case ambiguous:
			why, what = serverFailed, again // the transaction is aborted: it does not count
		case reset:
			why = aborted
		case again, single, whole:
		}
		if first == nil || first.kind == again || first.kind == reset {
			first = &refusal{batch: b, lane: b.lane, why: why, kind: what, cause: explain(b, part, cause)}
		}
	}
	return first
}

// undo puts the messages of a transaction back that is not committed, and will not be. The next producer aborts it.
func (t *transactor) undo(tx *transaction, cause error) {
	t.producer = nil
	t.p.mu.Lock()
	t.p.now = time.Now()
	t.settle(tx, func(*flight) bool { return false })
	r := (*refusal)(nil)
	known := errors.As(cause, &r) && r.lane.topic.name != t.p.cfg.Transactions.Topic && r.kind != reset
	if known {
		t.blame(tx, r)
	}
	t.p.release()
	if !known && cause != nil {
		t.failed(cause)
	}
}

// blame deals with what a partition did not take. The publisher's mutex is held.
func (t *transactor) blame(tx *transaction, r *refusal) {
	p, ln := t.p, r.lane
	switch r.kind {
	case single:
		if n := len(r.batch.flights); n > 1 {
			ln.most = n / 2
			return
		}
		if r.why == tooLargeByNow {
			ln.topic.limit = 0 // not what we thought
			p.want(ln.topic)
		}
		if f := r.batch.flights[0]; f.state != over {
			p.fail(f, r.why.result(r.cause))
		}
	case whole:
		for _, f := range tx.byLane[ln].flights {
			if f.state != over {
				p.fail(f, r.why.result(r.cause))
			}
		}
	default: // the others go on without it
		p.want(ln.topic)
		ln.trouble.adds(p.now, r.why, r.cause)
		p.rest(ln)
	}
}

// failed lets the transactor rest; what waits once patience is over is answered.
func (t *transactor) failed(err error) {
	t.producer = nil
	why := whyOf(err)
	if r := (*refusal)(nil); errors.As(err, &r) {
		why = r.why
	}
	t.p.mu.Lock()
	t.p.now = time.Now()
	for _, c := range t.claims {
		c.last = err
	}
	if t.patient = !t.trouble.adds(t.p.now, why, err); !t.patient {
		t.failAll(why, err)
	}
	t.p.release()
	d := min(shortestRest<<min(t.tries, 8), longestRest)
	t.tries++
	select {
	case <-time.After(d):
	case <-t.p.life.Done():
	}
}

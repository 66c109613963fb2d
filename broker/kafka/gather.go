package kafka

import (
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// gather takes what can go out now into a transaction; nil: nothing. What waits keeps what is behind it of its key.
func (t *transactor) gather() *transaction {
	p := t.p
	p.mu.Lock()
	defer p.release()
	p.now = time.Now()
	tx := &transaction{byLane: map[*lane]*parcel{}, lanes: map[string]*lane{}, ids: map[outbox.ID]bool{}}
	waits := map[string]bool{}
	queue := t.queue
	t.queue = nil
	for _, f := range queue {
		if f.state == over {
			continue
		}
		if f.key != "" && waits[f.key] || len(tx.flights) >= mostRecords || tx.bytes >= mostBytes || !t.admit(tx, f) {
			if waits[f.key] = true; f.state != over {
				t.queue = append(t.queue, f)
			}
		}
	}
	if len(tx.flights) == 0 {
		return nil
	}
	return tx
}

// admit takes a message into a transaction, or answers it, or says that it waits.
func (t *transactor) admit(tx *transaction, f *flight) bool {
	p, h := t.p, t.held[f.partition]
	if h == nil {
		p.fail(f, unclaimed.errorf("partition %d of the outbox is not claimed", f.partition))
		return true
	}
	before := tx.lanes[f.key]
	if f.key == "" {
		before = nil
	}
	if h.has(f.id) {
		if before != nil { // in its turn
			return false
		}
		p.end(f, broker.Result{Outcome: verdicts[alreadyThere].outcome})
		return true
	}
	ln := t.laneFor(f)
	if ln == nil || before != nil && before != ln || tx.ids[f.id] {
		return f.state == over
	}
	one := tx.byLane[ln]
	if one != nil && len(one.flights) >= ln.most {
		return false
	}
	if one == nil {
		one = &parcel{lane: ln}
		tx.byLane[ln] = one
		tx.parcels = append(tx.parcels, one)
	}
	f.state, f.tx, f.lane = away, tx, ln
	one.flights = append(one.flights, f)
	tx.flights = append(tx.flights, f)
	tx.lanes[f.key], tx.ids[f.id] = ln, true
	tx.bytes += len(f.body)
	return true
}

// laneFor is where a message goes; nil: it has to wait, or was answered.
func (t *transactor) laneFor(f *flight) *lane {
	p := t.p
	topic := p.topic(f.topic)
	if !topic.known {
		if !f.waits {
			f.waits = true
			topic.waiting = append(topic.waiting, f)
		}
		p.want(topic)
		return nil
	}
	ln := topic.laneOf(p, f.to)
	if size := sizeAlone(f.body); topic.limit > 0 && size > topic.limit {
		p.fail(f, tooLarge.errorf("the record comes to %d bytes; topic %s takes %d", size, f.topic, topic.limit))
		return nil
	}
	if ln.leader < 0 && !ln.resting {
		why, cause := topic.lacking()
		p.want(topic)
		ln.trouble.adds(p.now, why, cause)
		p.rest(ln)
	}
	if ln.resting {
		if tr := ln.trouble; tr.cause != nil && p.now.Sub(tr.since) >= patience(tr.why) {
			p.fail(f, tr.why.result(tr.cause))
		}
		return nil
	}
	return ln
}

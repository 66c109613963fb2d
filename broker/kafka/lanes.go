package kafka

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Bounds of one batch and one request, of how many requests a broker has at once, and of waits.
const (
	batchBytes   = 1 << 20
	batchRecords = 10_000
	requestBytes = 8 << 20
	requestsOut  = 2
	shortestRest = 10 * time.Millisecond
	longestRest  = 250 * time.Millisecond
	spread       = 100 // messages without a key that go to one partition before the next one's turn
)

// lane is a partition of a topic. It has one batch on its way at a time, so that order needs no more than that.
type lane struct {
	topic     *topic
	partition int32
	leader    int32 // -1: none
	queue     []*flight
	dead      int    // of the queue: they have their answers
	batch     *batch // on its way, or to be sent again as it is
	listed    bool   // with its leader, as ready
	resting   bool   // after a failure
	tries     int
	most      int // records of a batch
	producer  *producer
	next      int32 // sequence number of its next record
	trouble   trouble
}

// producer is an identity that the broker gave us; with it a batch that is sent twice is stored once.
type producer struct {
	id    int64
	epoch int16
}

// batch is what is sent of a lane at once.
type batch struct {
	lane      *lane
	flights   []*flight
	topicID   [16]byte
	live      int
	leader    int32 // in a transaction: to whom it is sent
	offset    int64 // and where it is stored; -1: not known
	seq       sequence
	records   []byte
	written   atomic.Bool // the request was put on the wire, as far as we know
	out       bool        // its request has no answer
	ambiguous bool        // an attempt may have stored it
	why       situation   // of that attempt
	cause     error
}

func (b *batch) mayBeStored() bool { return b.out || b.ambiguous }

// trouble is since when nothing gets through, and why.
type trouble struct {
	since, last time.Time
	why         situation
	cause       error
}

// patience is how long what was not stored is tried again before it is answered: a second, or as long as a leader takes to move.
func patience(why situation) time.Duration {
	if why == noLeader || why == tooFewReplicas || why == noCoordinator {
		return 3 * time.Second
	}
	return time.Second
}

// adds counts one more failure, and reports whether patience is over.
func (t *trouble) adds(now time.Time, why situation, cause error) bool {
	if t.since.IsZero() || now.Sub(t.last) > patience(why) {
		t.since = now
	}
	t.last, t.why, t.cause = now, why, cause
	return now.Sub(t.since) >= patience(why)
}

// node is a broker of the cluster.
type node struct {
	id    int32
	ready []*lane
	out   int // requests without an answer
}

func (p *Publisher) node(id int32) *node {
	n := p.nodes[id]
	if n == nil {
		n = &node{id: id}
		p.nodes[id] = n
	}
	return n
}

// tidy drops what has its answers.
func (ln *lane) tidy() {
	if ln.dead*2 > len(ln.queue) {
		ln.queue = slices.DeleteFunc(ln.queue, func(f *flight) bool { return f.state != queued })
		ln.dead = 0
	}
}

// list makes a lane ready to be sent, if it has something and nothing hinders it.
func (p *Publisher) list(ln *lane) {
	if ln.listed || ln.resting || ln.batch != nil && ln.batch.out || ln.batch == nil && len(ln.queue) == ln.dead {
		return
	}
	if ln.leader < 0 {
		p.want(ln.topic)
		p.rest(ln)
		return
	}
	if ln.producer == nil {
		if p.producer == nil {
			p.askProducer(ln)
			return
		}
		ln.producer, ln.next = p.producer, 0
	}
	ln.listed = true
	n := p.node(ln.leader)
	n.ready = append(n.ready, ln)
	p.dirty[n] = struct{}{}
}

// pump sends what is ready.
func (p *Publisher) pump() {
	for len(p.dirty) > 0 {
		var n *node
		for n = range p.dirty {
			break
		}
		delete(p.dirty, n)
		for n.out < requestsOut && !p.ended {
			batches := p.gather(n)
			if len(batches) == 0 {
				break
			}
			n.out++
			p.group.Go(func() { p.send(n, batches) })
		}
	}
}

// gather takes a batch of each lane that is ready, as many as a request holds.
func (p *Publisher) gather(n *node) []*batch {
	var batches []*batch
	size, used := 0, 0
	for _, ln := range n.ready {
		if size >= requestBytes {
			break
		}
		used++
		ln.listed = false
		if ln.leader != n.id || ln.producer == nil {
			p.list(ln)
			continue
		}
		if b := ln.take(); b != nil {
			b.out = true
			ln.batch = b
			batches = append(batches, b)
			for _, f := range b.flights {
				size += len(f.body) + recordOverhead
			}
		}
	}
	n.ready = append(n.ready[:0], n.ready[used:]...)
	return batches
}

// take makes the lane's next batch, or returns the one that must be sent again; nil: nothing is left.
func (ln *lane) take() *batch {
	if ln.batch != nil {
		return ln.batch
	}
	b := &batch{lane: ln, topicID: ln.topic.id, seq: sequence{ln.producer.id, ln.producer.epoch, ln.next, false}}
	limit := batchBytes
	if ln.topic.limit > 0 {
		limit = min(limit, ln.topic.limit)
	}
	size, used := batchOverhead, 0
	for _, f := range ln.queue {
		if f.state != queued {
			used++
			ln.dead--
			continue
		}
		size += len(f.body) + recordOverhead
		if len(b.flights) > 0 && (size > limit || len(b.flights) >= ln.most) {
			break
		}
		used++
		f.state, f.batch = away, b
		b.flights = append(b.flights, f)
	}
	if ln.queue = ln.queue[used:]; len(ln.queue) == 0 {
		ln.queue = nil
	}
	if b.live = len(b.flights); b.live == 0 {
		return nil
	}
	return b
}

// dissolve puts what is left of a batch, which was not stored, back to the front of its lane.
func (p *Publisher) dissolve(b *batch) {
	ln := b.lane
	ln.batch = nil
	var back []*flight
	for _, f := range b.flights {
		if f.state == away {
			f.state, f.batch = queued, nil
			back = append(back, f)
		}
	}
	ln.queue = append(back, ln.queue...)
}

// abandon gives up a batch for which nobody waits any more. Its numbers may be used or not: the lane needs a new producer.
func (p *Publisher) abandon(b *batch) {
	ln := b.lane
	if b.out || ln.batch != b {
		return
	}
	ln.batch = nil
	p.spend(ln)
	p.list(ln)
}

// spend takes a producer away from a lane that does not know which of its numbers the broker has.
func (p *Publisher) spend(ln *lane) {
	if p.producer == ln.producer {
		p.producer = nil
	}
	ln.producer = nil
}

// rest keeps a lane from sending for a while.
func (p *Publisher) rest(ln *lane) {
	ln.resting = true
	d := min(shortestRest<<min(ln.tries, 8), longestRest)
	ln.tries++
	time.AfterFunc(d, func() {
		p.mu.Lock()
		defer p.release()
		ln.resting = false
		if p.ended {
			return
		}
		if p.tx != nil {
			p.tx.nudge()
			return
		}
		if ln.leader < 0 {
			why, cause := ln.topic.lacking()
			if ln.trouble.adds(time.Now(), why, cause) {
				p.failQueue(ln, why, cause)
			}
		}
		p.list(ln)
	})
}

// troubled lets a lane rest; what waits in it once patience is over is answered.
func (p *Publisher) troubled(ln *lane, why situation, cause error) {
	if ln.trouble.adds(time.Now(), why, cause) {
		p.failQueue(ln, why, cause)
	}
	p.rest(ln)
}

// failQueue answers all that is queued in a lane.
func (p *Publisher) failQueue(ln *lane, why situation, cause error) {
	for _, f := range slices.Clone(ln.queue) {
		if f.state == queued {
			p.fail(f, why.result(cause))
		}
	}
}

// laneOf is the lane of a key, the same as the Java client's; without a key the topic's lanes take turns.
func (t *topic) laneOf(p *Publisher, key string) *lane {
	if key != "" {
		return t.lanes[p.hash.Partition(&kgo.Record{Key: []byte(key)}, t.count)]
	}
	for range t.count { // past those without a leader
		if t.turn.left == 0 {
			t.turn.lane, t.turn.left = (t.turn.lane+1)%t.count, spread
		}
		if ln := t.lanes[t.turn.lane]; ln.leader >= 0 {
			break
		}
		t.turn.left = 0
	}
	t.turn.left = max(t.turn.left-1, 0)
	return t.lanes[t.turn.lane]
}

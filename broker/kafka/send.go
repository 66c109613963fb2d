package kafka

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/broker"
)

// produceRequest is a produce request that tells its batches when it is put on the wire.
type produceRequest struct {
	*kmsg.ProduceRequest
	batches []*batch
	most    int16 // version; 0: any
}

func (r *produceRequest) MaxVersion() int16 {
	if r.most > 0 {
		return r.most
	}
	return r.ProduceRequest.MaxVersion()
}

// AppendTo is called right before the request is written.
func (r *produceRequest) AppendTo(b []byte) []byte {
	for _, one := range r.batches {
		one.written.Store(true)
	}
	return r.ProduceRequest.AppendTo(b)
}

// Timeout is how long the broker itself waits for its replicas; the client adds its own patience.
func (r *produceRequest) Timeout() time.Duration {
	return time.Duration(r.TimeoutMillis) * time.Millisecond
}

// newRequest puts batches into a request that all in-sync replicas must acknowledge.
func (p *Publisher) newRequest(batches []*batch) *produceRequest {
	r := kmsg.NewPtrProduceRequest()
	r.Acks = -1
	r.TimeoutMillis = int32(min(p.cfg.AckTimeout*3/4, brokerWaits) / time.Millisecond) //nolint:gosec // at most brokerWaits
	places := map[*topic]int{}
	for _, b := range batches {
		t := b.lane.topic
		i, ok := places[t]
		if !ok {
			i = len(r.Topics)
			places[t] = i
			one := kmsg.NewProduceRequestTopic()
			one.Topic, one.TopicID = t.name, b.topicID
			r.Topics = append(r.Topics, one)
		}
		part := kmsg.NewProduceRequestTopicPartition()
		part.Partition, part.Records = b.lane.partition, b.records
		r.Topics[i].Partitions = append(r.Topics[i].Partitions, part)
	}
	return &produceRequest{ProduceRequest: r, batches: batches}
}

// brokerWaits is how long a broker waits for its other replicas at most; it says so before the message's own time is over.
const brokerWaits = 10 * time.Second

// send sends one request, and judges its answer.
func (p *Publisher) send(n *node, batches []*batch) {
	for _, b := range batches {
		b.written.Store(false)
		if b.records == nil {
			b.records = encode(b.flights, b.seq, p.compressor)
		}
	}
	response, err := p.client.Broker(int(n.id)).Request(p.life, p.newRequest(batches))
	produced, ok := response.(*kmsg.ProduceResponse)
	if err == nil && !ok {
		err = errStrangeAnswer
	}
	p.mu.Lock()
	defer p.release()
	p.now = time.Now()
	n.out--
	for _, b := range batches {
		b.out = false
		if err != nil {
			p.unheard(b, err)
		} else {
			p.heard(b, partOf(produced, b))
		}
	}
	p.dirty[n] = struct{}{}
}

// partOf finds what a response says of a batch.
func partOf(r *kmsg.ProduceResponse, b *batch) *kmsg.ProduceResponseTopicPartition {
	for i := range r.Topics {
		t := &r.Topics[i]
		if t.Topic != b.lane.topic.name && (b.topicID == [16]byte{} || t.TopicID != b.topicID) {
			continue
		}
		for j := range t.Partitions {
			if t.Partitions[j].Partition == b.lane.partition {
				return &t.Partitions[j]
			}
		}
	}
	return nil
}

var (
	errStrangeAnswer = errors.New("kafka: the broker's answer is of another kind")
	errNoPart        = errors.New("kafka: the broker's answer says nothing of the partition")
	errNoLeader      = errors.New("kafka: the partition has no leader")
)

// unheard deals with a batch whose request has no answer.
func (p *Publisher) unheard(b *batch, cause error) {
	p.want(b.lane.topic) // the leader may be another one
	if b.written.Load() {
		p.doubt(b, connectionLost, fmt.Errorf("kafka: no answer: %w", cause))
		return
	}
	p.missed(b, notConnected, fmt.Errorf("kafka: not sent: %w", cause))
}

// heard deals with the answer for a batch.
func (p *Publisher) heard(b *batch, part *kmsg.ProduceResponseTopicPartition) {
	if part == nil {
		p.doubt(b, unconfirmed, errNoPart)
		return
	}
	cause := kerr.ErrorForCode(part.ErrorCode)
	s, what := judge(part.ErrorCode, kerr.IsRetriable(cause))
	if cause != nil {
		cause = explain(b, part, cause)
	}
	switch what {
	case stored:
		p.stored(b, s, part.BaseOffset)
	case again:
		p.want(b.lane.topic)
		p.missed(b, s, cause)
	case ambiguous:
		p.want(b.lane.topic)
		p.doubt(b, s, cause)
	case single:
		p.single(b, s, cause)
	case whole:
		p.whole(b, s, cause)
	case reset:
		p.reset(b, s, cause)
	}
}

// explain adds the broker's own words to an error.
func explain(b *batch, part *kmsg.ProduceResponseTopicPartition, cause error) error {
	where := fmt.Sprintf("kafka: topic %s, partition %d", b.lane.topic.name, b.lane.partition)
	if part.ErrorMessage != nil {
		return fmt.Errorf("%s: %w (%s)", where, cause, *part.ErrorMessage)
	}
	return fmt.Errorf("%s: %w", where, cause)
}

// stored answers a batch that the broker has.
func (p *Publisher) stored(b *batch, s situation, offset int64) {
	ln := b.lane
	ln.batch = nil
	ln.trouble, ln.tries = trouble{}, 0
	ln.most = min(2*ln.most, batchRecords)
	if ln.producer != nil {
		ln.next = int32((int64(ln.next) + int64(len(b.flights))) & 0x7fffffff) //nolint:gosec // it begins again at 0
	}
	for i, f := range b.flights {
		if f.state == over {
			continue
		}
		r := broker.Result{Outcome: verdicts[s].outcome}
		if offset >= 0 {
			r.Position = strconv.Itoa(int(ln.partition)) + ":" + strconv.FormatInt(offset+int64(i), 10)
		}
		p.end(f, r)
		if l := f.line; l != nil && l.placed == 0 {
			p.advance(l)
		}
	}
	p.list(ln)
}

// missed deals with a batch that this attempt did not store.
func (p *Publisher) missed(b *batch, s situation, cause error) {
	if b.ambiguous { // an earlier attempt may have: the same batch is sent again
		p.doubt(b, b.why, b.cause)
		return
	}
	p.dissolve(b)
	p.troubled(b.lane, s, cause)
}

// doubt keeps a batch that may be stored, to send the same again: the broker stores it once.
func (p *Publisher) doubt(b *batch, s situation, cause error) {
	b.ambiguous, b.why, b.cause = true, s, cause
	if b.live == 0 {
		p.abandon(b)
		return
	}
	p.rest(b.lane)
}

// undecided answers what is left of a batch that may be stored and cannot be sent again.
func (p *Publisher) undecided(b *batch, s situation, cause error) {
	for _, f := range b.flights {
		if f.state != over {
			p.fail(f, s.result(cause))
		}
	}
	p.abandon(b) // where the last answer has not done so
}

// single finds the record that is to blame: in smaller batches, in the end alone in one.
func (p *Publisher) single(b *batch, s situation, cause error) {
	ln := b.lane
	if b.ambiguous {
		p.undecided(b, unconfirmed, cause)
		return
	}
	p.dissolve(b)
	if len(b.flights) > 1 {
		ln.most = len(b.flights) / 2
	} else if s == tooLargeByNow {
		ln.topic.limit = 0 // not what we thought
		p.want(ln.topic)
	}
	if f := b.flights[0]; len(b.flights) == 1 && f.state != over {
		p.fail(f, s.result(cause))
	}
	p.list(ln)
}

// whole answers all that waits for a partition that takes nothing of ours.
func (p *Publisher) whole(b *batch, s situation, cause error) {
	if b.ambiguous {
		p.undecided(b, unconfirmed, cause)
		return
	}
	p.dissolve(b)
	p.failQueue(b.lane, s, cause)
	p.list(b.lane)
}

// reset begins a lane anew with another producer.
func (p *Publisher) reset(b *batch, s situation, cause error) {
	if b.ambiguous {
		p.undecided(b, s, cause)
		return
	}
	p.spend(b.lane)
	p.dissolve(b)
	p.troubled(b.lane, serverFailed, cause)
}

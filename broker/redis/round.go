package redis

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/inflight"
)

// The most that goes out at once: a server with appendfsync always makes one fsync of what it reads at once.
const (
	roundMessages = 1000
	roundBytes    = 1 << 20 // one larger message goes alone
)

// write is the goroutine that sends. It sends what there is, reads the replies, and sends what has come meanwhile.
func (p *Publisher) write() {
	w := &writer{publisher: p}
	for {
		if l := p.take(w); l != nil {
			w.send(l)
			continue
		}
		select {
		case <-p.flights.Work():
		case <-p.flights.Stopped().Done(): // everything has its answer by now
			return
		}
	}
}

// take takes the next round out of the queue, with the connection of this moment; nil when there is nothing to send.
func (p *Publisher) take(w *writer) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.flights = w.flights[:0]
	size := 0
	for len(w.flights) < roundMessages && size < roundBytes {
		f := p.flights.Next()
		switch {
		case f == nil:
			size = roundBytes
		case p.link == nil:
			p.flights.Settle(f, notConnected.errorf("no connection: %w", p.fault))
		default:
			w.flights = append(w.flights, f)
			size += len(f.Envelope().Payload)
		}
	}
	if len(w.flights) == 0 {
		return nil
	}
	return p.link
}

// writer is what the goroutine reuses from round to round.
type writer struct {
	publisher *Publisher
	flights   []*inflight.Flight
	out       broker.Outgoing
}

// send sends one round and gives each message its answer.
func (w *writer) send(l *link) {
	p := w.publisher
	pipe := l.conn.Pipeline()
	var sentFlights []*inflight.Flight
	var replies []*redis.Cmd
	for _, f := range w.flights {
		args, fault := w.build(f.Envelope(), l)
		p.mu.Lock()
		if early := f.Early(); early != nil {
			fault = early
		}
		if fault != nil {
			p.flights.Settle(f, *fault)
		} else {
			f.Sent()
		}
		p.mu.Unlock()
		if fault == nil {
			sentFlights, replies = append(sentFlights, f), append(replies, pipe.Do(context.Background(), args...))
		}
	}
	if len(replies) == 0 {
		return
	}
	var onDisk *redis.Cmd
	if p.cfg.WaitAOF {
		onDisk = pipe.Do(context.Background(), "waitaof", 1, 0, (p.cfg.AckTimeout / 2).Milliseconds())
	}
	before := l.socket.written.Load()
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.AckTimeout+time.Second) // each message's own time ends before
	l.inUse.Lock()
	_, err := pipe.Exec(ctx)
	l.inUse.Unlock()
	cancel()
	untouched := l.socket.written.Load() == before
	lost := err != nil && !isReply(err)
	p.mu.Lock()
	for i, f := range sentFlights {
		s, r := w.answer(replies[i], onDisk, untouched, err)
		p.flights.Settle(f, r)
		lost = lost || s == notConnected || s == readOnly // where go-redis gives the connection up, for another server behind the name
	}
	if lost {
		p.link, p.fault = nil, errLost
	}
	p.mu.Unlock()
	if lost {
		l.drop()
	}
}

// answer is what a reply means for its message; round is the error of the whole round.
func (w *writer) answer(reply, onDisk *redis.Cmd, untouched bool, round error) (situation, broker.Result) {
	err := reply.Err()
	if err == nil && reply.Val() == nil { // go-redis had no connection for it
		err = errLost
	}
	s := taken
	switch {
	case err == nil && onDisk != nil:
		if n, waited := onDisk.Int64Slice(); waited != nil || len(n) != 2 || n[0] < 1 {
			s = notOnDisk
			return s, s.errorf("WAITAOF answers %v: %w", n, errors.Join(errNotOnDisk, waited))
		}
	case err == nil:
	case isReply(err):
		s = judge(err)
		return s, s.errorf("the server refuses it: %w", err)
	case untouched:
		s = notConnected
	case isTimeout(err):
		s = noAnswer
	default:
		s = connectionLost
	}
	if s != taken {
		return s, s.errorf("no answer: %w", errors.Join(err, round))
	}
	id, err := reply.Text()
	if err != nil {
		return connectionLost, connectionLost.errorf("an answer that is no id of an entry: %w", err)
	}
	return s, broker.Result{Outcome: broker.Accepted, Position: id}
}

// build makes the command of a message, in memory of its own, or says why it cannot be sent.
func (w *writer) build(e *broker.Envelope, l *link) ([]any, *broker.Result) {
	p := w.publisher
	refuse := func(r broker.Result) ([]any, *broker.Result) { return nil, &r }
	if err := p.wire.Encode(e, &w.out); err != nil {
		return refuse(broker.Refuse(err))
	}
	if l.limit > 0 && len(w.out.Payload) > l.limit {
		return refuse(aboveKnownLimit.errorf("a payload of %d bytes is larger than the server's proto-max-bulk-len, %d bytes", len(w.out.Payload), l.limit))
	}
	args := make([]any, 0, 14+2*len(w.out.Headers))
	if p.cfg.Fence != "" {
		args = append(args, "eval", fenced, 2, fenceKey(p.cfg.Fence, e.Partition), w.out.Topic, owner(e), p.cfg.FenceFor.Milliseconds())
	} else {
		args = append(args, "xadd", w.out.Topic)
	}
	args = p.trim(args)
	args = append(args, "*")
	for _, h := range w.out.Headers {
		args = append(args, h.Name, h.Value)
	}
	return append(args, PayloadField, string(w.out.Payload)), nil
}

// trim adds what XADD shall cut off the stream.
func (p *Publisher) trim(args []any) []any {
	how := "~"
	if p.cfg.ExactTrim {
		how = "="
	}
	switch {
	case p.cfg.MaxLen > 0:
		return append(args, "maxlen", how, p.cfg.MaxLen)
	case p.cfg.MaxAge > 0:
		return append(args, "minid", how, strconv.FormatInt(time.Now().Add(-p.cfg.MaxAge).UnixMilli(), 10))
	}
	return args
}

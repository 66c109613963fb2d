package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/outbox"
)

// maxStrangers is how many messages of others a search passes by: there, each one takes several questions, and a subject
// that others write to is the trouble of its key alone.
const maxStrangers = 1000

// maxSearchers is how many subjects are read at once.
const maxSearchers = 64

// search has the stream asked whether it has a message. The publisher's mutex is held.
func (p *Publisher) search(f *flight) {
	c := p.compare
	f.state = doubtful
	c.searching.push(f)
	if c.searchers < maxSearchers {
		c.searchers++
		p.group.Go(p.searcher)
	}
}

// searcher decides about messages until none waits.
func (p *Publisher) searcher() {
	for {
		p.mu.Lock()
		f := p.compare.searching.pop()
		if f == nil {
			p.compare.searchers--
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		p.decide(f)
	}
}

// decide reads the subject of a message until it is known whether the message is stored; it answers what is, and sends
// what is not. What was read stays known when the message's time is over meanwhile: the next try goes on from there.
func (p *Publisher) decide(f *flight) {
	p.mu.Lock()
	l := p.link
	p.mu.Unlock()
	epoch := l.epoch()
	for {
		p.mu.Lock()
		if p.flights[f.token] != f {
			p.mu.Unlock()
			return
		}
		if f.lane.read && (f.lane.link != l || f.lane.epoch != epoch) {
			p.compare.forget(f.lane)
		}
		position, decided := f.lane.has(f)
		if decided && position == 0 {
			f.state = queued
			p.queue.push(f)
			signal(p.work)
		}
		read, at := f.lane.read, f.lane.at
		p.mu.Unlock()
		switch {
		case position != 0:
			p.settle(f.token, stored(found, position))
			return
		case decided:
			return
		}
		m, err := l.step(p, f.subject, read, at)
		if err != nil {
			p.settle(f.token, unreadable.errorf("read subject %s: %w", f.subject, err))
			return
		}
		if p.learn(f, m, read, at, l, epoch); f.strangers > maxStrangers {
			p.settle(f.token, overtaken.errorf("subject %s has more than %d messages of others: the next try reads on", f.subject, maxStrangers))
			return
		}
	}
}

// learn takes up what a step has read, unless it is known to be wrong by now.
func (p *Publisher) learn(f *flight, m *storedMessage, read bool, at trail, l *link, epoch uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flights[f.token] != f || f.lane.read != read || f.lane.at != at {
		return
	}
	f.lane.learn(p.compare, m)
	f.lane.link, f.lane.epoch = l, epoch
	if m != nil && !m.compared {
		f.strangers++
	}
}

// step reads the last message of a subject, or the one that a trail leads to; nil: there is none.
func (l *link) step(p *Publisher, subject string, read bool, at trail) (*storedMessage, error) {
	ctx, cancel := context.WithTimeout(p.stop, lookupTime)
	defer cancel()
	if !read {
		return l.get(ctx, p.cfg, getRequest{LastBySubject: subject})
	}
	if at.exact {
		if at.seq == 0 {
			return nil, nil //nolint:nilnil // the beginning of the subject
		}
		m, err := l.get(ctx, p.cfg, getRequest{Seq: at.seq})
		if err != nil || m != nil && m.subject == subject {
			return m, err
		}
	}
	return l.before(ctx, p.cfg, subject, at.above)
}

// learn takes up the message that a step has read; nil: there is none.
func (l *lane) learn(c *comparison, m *storedMessage) {
	switch {
	case m == nil:
		l.read, l.floor, l.at = true, noSeq, trail{exact: true}
		return
	case !l.read:
		l.read, l.last, l.floor = true, m.seq, maxSeq
	}
	l.high = max(l.high, m.high)
	l.at = trail{above: m.seq, seq: m.behind, exact: m.compared}
	if m.compared {
		l.floor = min(l.floor, m.high)
	}
	if m.id != (outbox.ID{}) {
		c.note(l, m.id, m.seq)
	}
}

// storedMessage is what we read of a message of the stream.
type storedMessage struct {
	subject  string
	seq      uint64
	id       outbox.ID // zero: it is not Onward's
	compared bool      // published in compare mode: behind is known, and high is that of all up to here
	behind   uint64    // the message before it on its subject; 0: none
	high     int64     // not compared: its own onward-seq, noSeq where it has none
}

// getRequest asks for one message: the last of a subject, the one at Seq, or the first of a subject from Seq on.
type getRequest struct {
	Seq           uint64 `json:"seq,omitempty"`
	LastBySubject string `json:"last_by_subj,omitempty"`
	NextBySubject string `json:"next_by_subj,omitempty"`
}

// jsNoMessage is the API error for a message that is not there.
const jsNoMessage natsgo.ErrorCode = 10037

// get asks the leader of the stream for a message; nil: there is none. Direct gets are answered by any replica, which may
// not have the last messages yet.
func (l *link) get(ctx context.Context, c Config, request getRequest) (*storedMessage, error) {
	if !l.nc.IsConnected() {
		return nil, l.down(false)
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	reply, err := l.nc.RequestWithContext(ctx, c.api()+".STREAM.MSG.GET."+c.Stream, body)
	if err != nil {
		return nil, fmt.Errorf("ask stream %s for a message: %w", c.Stream, l.denial(ctx, err))
	}
	var answer struct {
		Message *struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Headers []byte `json:"hdrs"`
		} `json:"message"`
		Error *natsgo.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, fmt.Errorf("read what stream %s says of a message: %w", c.Stream, err)
	}
	switch m := answer.Message; {
	case answer.Error != nil && answer.Error.ErrorCode == jsNoMessage:
		return nil, nil //nolint:nilnil // there is none
	case answer.Error != nil:
		return nil, fmt.Errorf("ask stream %s for a message: %w", c.Stream, answer.Error)
	case m == nil || m.Seq == 0:
		return nil, fmt.Errorf("ask stream %s for a message: the answer has none", c.Stream)
	default:
		return parseStored(m.Subject, m.Seq, m.Headers)
	}
}

func parseStored(subject string, seq uint64, raw []byte) (*storedMessage, error) {
	m := &storedMessage{subject: subject, seq: seq, high: noSeq}
	if len(raw) == 0 {
		return m, nil
	}
	headers, err := natsgo.DecodeHeadersMsg(raw)
	if err != nil {
		return nil, fmt.Errorf("headers of message %d: %w", seq, err)
	}
	if m.id, err = outbox.ParseID(headers.Get(headerID)); err != nil {
		m.id = outbox.ID{}
		return m, nil //nolint:nilerr // not Onward's
	}
	if own, err := strconv.ParseInt(headers.Get(headerSeq), 10, 64); err == nil {
		m.high = own
	}
	high, errHigh := strconv.ParseInt(headers.Get(headerHigh), 10, 64)
	behind, errBehind := strconv.ParseUint(headers.Get(headerExpected), 10, 64)
	if errHigh == nil && errBehind == nil {
		m.compared, m.high, m.behind = true, max(m.high, high), behind
	}
	return m, nil
}

// before finds the last message of a subject before a sequence, behind which somebody else published, or messages were
// removed: nothing leads to it. The server knows only what comes next, so it looks from further and further away, and
// then closes in.
func (l *link) before(ctx context.Context, c Config, subject string, above uint64) (*storedMessage, error) {
	next := func(from uint64) (*storedMessage, error) {
		m, err := l.get(ctx, c, getRequest{Seq: from, NextBySubject: subject})
		if err != nil || m == nil || m.seq >= above {
			return nil, err
		}
		return m, nil
	}
	var found *storedMessage
	none := above // from here on there is none
	for distance := uint64(1); found == nil; distance *= 2 {
		if none <= 1 {
			return nil, nil //nolint:nilnil // the beginning of the stream
		}
		from := uint64(1)
		if above > distance {
			from = above - distance
		}
		m, err := next(from)
		if err != nil {
			return nil, err
		}
		if found = m; m == nil {
			none = from
		}
	}
	for found.seq+1 < none {
		middle := found.seq + 1 + (none-found.seq-1)/2
		m, err := next(middle)
		switch {
		case err != nil:
			return nil, err
		case m == nil:
			none = middle
		default:
			found = m
		}
	}
	return found, nil
}

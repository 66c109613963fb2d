package nats

import (
	"container/list"
	"math"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// In compare mode each key has a subject of its own, and every message says behind which one of its subject it wants to
// stand: the server stores it there or refuses it. So a second copy can be stored only by somebody who does not know that
// the first one is there. What is there is read from the stream itself, by two headers of the messages:
//
//   - Nats-Expected-Last-Subject-Sequence, checked by the server when it stored the message, leads from each message to
//     the one before it on its subject;
//   - onward-seq-high is the highest onward-seq up to there. A message with a higher one was never stored. For any other,
//     going back ends at the first message whose high is lower: whatever is before that has lower numbers alone.
//
// docs/decisions/0011 says why neither a number of messages nor a time could be the end.
const (
	headerHigh     = "onward-seq-high"
	headerID       = "onward-id"
	headerSeq      = "onward-seq"
	headerExpected = natsgo.ExpectedLastSubjSeqHdr
)

// What is remembered of subjects, so that most messages need no look-up: so many subjects, and so many messages of theirs.
const (
	maxLanes  = 65_536
	maxStored = 1_000_000
)

// comparison is the part of a publisher that compare mode adds. The publisher's mutex guards all of it.
type comparison struct {
	lanes     map[string]*lane
	used      *list.List // of *lane, the last used in front
	stored    int        // messages remembered in all lanes
	maxLanes  int
	maxStored int
	searching queue // messages that wait for a searcher
	searchers int
}

func newComparison() *comparison {
	return &comparison{lanes: map[string]*lane{}, used: list.New(), maxLanes: maxLanes, maxStored: maxStored}
}

// lane is a subject: the message that is on its way, those that wait for it, and what is known of the stream.
type lane struct {
	subject string
	place   *list.Element
	flight  *flight
	waiting []*flight
	history
}

// history is what is known of the messages of a subject. A message is stored if it is in known; one whose number is above
// floor and that is not in known is not stored; of others nothing is known but that they are before.
type history struct {
	read  bool      // the last message is known, or that there is none
	last  uint64    // its sequence in the stream; 0: none
	high  int64     // the highest onward-seq of all; noSeq: none
	at    trail     // where to go on reading
	floor int64     // the highest onward-seq of what is not read yet, or more
	known positions // what has been read
	link  *link     // where it was learnt, in which session
	epoch uint64
}

// trail leads to a message that is not read yet: before the message at above, and if exact, at seq (0: there is none).
type trail struct {
	above, seq uint64
	exact      bool
}

type positions map[outbox.ID]uint64

// Below and above every onward-seq.
const (
	noSeq  = math.MinInt64
	maxSeq = math.MaxInt64
)

// has reports whether the history says that a message is stored, and whether it says anything.
func (h *history) has(f *flight) (position uint64, decided bool) {
	if position, ok := h.known[f.id]; ok {
		return position, true
	}
	return 0, h.read && f.seq > h.floor
}

// append notes a message that was stored behind the last one.
func (l *lane) append(c *comparison, f *flight, position uint64) {
	l.link, l.epoch, l.last = f.link, f.epoch, position
	if !l.read || f.seq > l.high { // it alone says all there is to know
		c.drop(l)
		l.read, l.high, l.floor = true, f.high, f.high
		l.at = trail{above: position + 1, seq: position, exact: true}
		return
	}
	c.note(l, f.id, position)
	if len(l.known) > c.maxStored {
		c.drop(l)
		l.floor, l.at = l.high, trail{above: position + 1, seq: position, exact: true}
	}
}

// note remembers where a message is.
func (c *comparison) note(l *lane, id outbox.ID, position uint64) {
	before := len(l.known)
	if l.known == nil {
		l.known = positions{}
	}
	l.known[id] = position
	c.stored += len(l.known) - before
}

// drop forgets where messages are.
func (c *comparison) drop(l *lane) {
	c.stored -= len(l.known)
	l.known = nil
}

// forget makes the subject be read again.
func (c *comparison) forget(l *lane) {
	c.drop(l)
	l.history = history{high: noSeq}
}

// forgetAll is for a stream that is not the one that was read.
func (c *comparison) forgetAll() {
	for _, l := range c.lanes {
		c.forget(l)
	}
}

// lane returns the subject's, the last used one from now on.
func (c *comparison) lane(subject string) *lane {
	l := c.lanes[subject]
	if l == nil {
		l = &lane{subject: subject, history: history{high: noSeq}}
		l.place = c.used.PushFront(l)
		c.lanes[subject] = l
		c.trim()
		return l
	}
	c.used.MoveToFront(l.place)
	return l
}

// trim forgets the subjects that have not been used for the longest time.
func (c *comparison) trim() {
	for e := c.used.Back(); e != nil && (len(c.lanes) > c.maxLanes || c.stored > c.maxStored); {
		l := e.Value.(*lane) //nolint:forcetypeassert // nothing else is put in
		e = e.Prev()
		if l.flight == nil && e != nil {
			c.remove(l)
		}
	}
}

func (c *comparison) remove(l *lane) {
	c.drop(l)
	c.used.Remove(l.place)
	delete(c.lanes, l.subject)
}

// admit lets a message out if it is its turn and it is not known to be stored. The publisher's mutex is held.
func (p *Publisher) admit(f *flight) bool {
	if f.lane == nil {
		f.lane = p.compare.lane(f.subject)
		if f.lane.flight != nil {
			f.lane.waiting = append(f.lane.waiting, f)
			return false
		}
		f.lane.flight = f
	}
	l := f.lane
	if position, decided := l.has(f); l.read && (position != 0 || !decided) {
		p.search(f)
		return false
	}
	f.behind, f.high = l.last, max(l.high, f.seq) // of a subject that was never read: that it is empty
	return true
}

// release lets the next message of the subject out. The publisher's mutex is held.
func (p *Publisher) release(f *flight) {
	l := f.lane
	if l == nil || l.flight != f {
		return
	}
	l.flight = nil
	for len(l.waiting) > 0 {
		next := l.waiting[0]
		l.waiting[0], l.waiting = nil, l.waiting[1:]
		if p.flights[next.token] == next {
			l.flight = next
			p.queue.push(next)
			signal(p.work)
			return
		}
	}
	l.waiting = nil
	if f.alone {
		p.compare.remove(l)
	}
	p.compare.trim()
}

// renew forgets what was learnt in another session of the connection, between which and this one the server may have
// lost or got back messages.
func (p *Publisher) renew(f *flight, l *link, epoch uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lane := f.lane
	if lane.flight == f && lane.read && (lane.link != l || lane.epoch != epoch) {
		p.compare.forget(lane)
		f.behind, f.high = 0, f.seq
	}
}

// acknowledged answers a message that the stream has taken.
func (p *Publisher) acknowledged(token, seq uint64) {
	p.mu.Lock()
	f := p.takeLocked(token)
	if f != nil && f.lane != nil && f.lane.flight == f {
		f.lane.append(p.compare, f, seq)
	}
	p.mu.Unlock()
	if f != nil {
		p.answer(f, stored(taken, seq))
	}
}

// maxMismatches is how often a message is tried again while others publish to its subject.
const maxMismatches = 20

// mismatched: the subject's last message is another one than was thought. What is known is wrong, and read again.
func (p *Publisher) mismatched(token uint64, cause error) {
	p.mu.Lock()
	f := p.flights[token]
	if f == nil || f.lane == nil || f.lane.flight != f {
		p.mu.Unlock()
		return
	}
	f.sent = false // this copy is not stored, and will not be
	p.compare.forget(f.lane)
	if f.mismatches++; f.mismatches < maxMismatches {
		p.search(f)
		p.mu.Unlock()
		return
	}
	delete(p.flights, token)
	p.mu.Unlock()
	p.answer(f, overtaken.errorf("others publish to %s all the time: %w", f.subject, cause))
}

// subjectOf is the subject of a message in compare mode, and whether it is the only one there. The key is the last word,
// the bytes outside of A-Z, a-z, 0-9, _ and - as =XX; without a key it is == and the id, which no key becomes.
func subjectOf(topic string, e *broker.Envelope) (subject string, alone bool) {
	if e.Key == "" {
		return topic + ".==" + e.ID.String(), true
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(topic)+1+len(e.Key)+16)
	b = append(append(b, topic...), '.')
	for i := range len(e.Key) {
		switch c := e.Key[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			b = append(b, c)
		default:
			b = append(b, '=', digits[c>>4], digits[c&15])
		}
	}
	return string(b), false
}

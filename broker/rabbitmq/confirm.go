package rabbitmq

import (
	"regexp"
	"slices"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/outbox"
)

// sweepEvery is how often all entries are looked at; otherwise it is the oldest that is waited for, because a server
// confirms nearly in order.
const sweepEvery = 20 * time.Millisecond

// watch answers what was sent on a channel until that is closed, and reports whether the connection is still there.
func (l *lane) watch(channel *amqp.Channel, closes <-chan *amqp.Error) bool {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		head, waiting := l.head()
		var all <-chan time.Time
		if waiting {
			all = tick.C
		}
		select {
		case <-head:
			l.sweep(channel, false)
		case <-all:
			l.sweep(channel, true)
			l.unblock(channel)
		case <-l.wake:
		case e := <-closes:
			l.closed(e)
			return !l.link.conn.IsClosed()
		}
	}
}

// head is the end of the wait for the oldest entry, nil where there is none or it is just being sent; waiting says that
// there is something to look at.
func (l *lane) head() (done <-chan struct{}, waiting bool) {
	p := l.link.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(l.entries) == 0 {
		return nil, !l.held.Empty()
	}
	if c := l.entries[0].confirm; c != nil {
		done = c.Done()
	}
	return done, true
}

// sweep answers what was confirmed: from the oldest to the first that was not, or all.
func (l *lane) sweep(channel *amqp.Channel, all bool) {
	p := l.link.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stoodStill() {
		l.link.drop()
		return
	}
	confirmed, left := l.split(all)
	if len(confirmed) == 0 {
		l.release()
		return
	}
	if channel.IsClosed() { // it ends waits, too; why it closed is about to be said
		return
	}
	l.takeReturns() // each was there before its confirmation was
	l.entries = left
	for _, e := range confirmed {
		l.confirmed(e)
	}
	l.release()
}

// split parts the entries that were confirmed from those that were not: from the oldest to the first that was not, or all.
func (l *lane) split(all bool) (confirmed, left []*entry) {
	n := 0
	for n < len(l.entries) && l.entries[n].isDone() {
		n++
	}
	confirmed, left = slices.Clone(l.entries[:n]), l.entries[n:]
	if !all || !slices.ContainsFunc(left, (*entry).isDone) {
		return confirmed, left
	}
	var open []*entry
	for _, e := range left {
		if e.isDone() {
			confirmed = append(confirmed, e)
		} else {
			open = append(open, e)
		}
	}
	return confirmed, open
}

// isDone also when the channel was closed before the confirmation came.
func (e *entry) isDone() bool {
	if e.confirm == nil {
		return false
	}
	select {
	case <-e.confirm.Done():
		return true
	default:
		return false
	}
}

// takeReturns notes which messages came back. A return names no delivery tag, so it is told by the message id; with two copies
// of an id on their way nobody can tell. The caller has the lock, so that whoever sees a confirmation sees the return before it.
func (l *lane) takeReturns() {
	for {
		select {
		case r, ok := <-l.returns:
			if !ok {
				l.returns = nil
				return
			}
			l.returned(&r)
		default:
			return
		}
	}
}

func (l *lane) returned(r *amqp.Return) {
	copies := 0
	for _, e := range l.entries {
		if e.id == r.MessageId {
			e.returned = r
			copies++
		}
	}
	for _, e := range l.entries {
		e.doubtful = e.doubtful || copies != 1 && (copies == 0 || e.id == r.MessageId)
	}
}

// confirmed answers one message. The caller has the lock.
func (l *lane) confirmed(e *entry) {
	p := l.link.publisher
	p.took(l.link, e)
	switch {
	case e.doubtful:
		p.flights.Settle(e.flight, unclear.errorf("a copy of it was returned"))
	case !e.confirm.Acked():
		p.flights.Settle(e.flight, nacked.errorf("the server refused it (basic.nack)"))
	case e.returned != nil:
		s := unroutable
		if time.Now().Before(l.link.settles) {
			s = unroutableYet
		}
		p.flights.Settle(e.flight, s.errorf("returned: %d %s: exchange %q, routing key %q", e.returned.ReplyCode, e.returned.ReplyText, e.to.exchange, e.to.key))
	default:
		p.flights.Settle(e.flight, taken.result(nil))
	}
}

// unblock gives a channel up on which one message went alone and has no confirmation in time: the next one must be alone too.
func (l *lane) unblock(channel *amqp.Channel) {
	p := l.link.publisher
	p.mu.Lock()
	stuck := l.alone && len(l.entries) > 0 && !slices.ContainsFunc(l.entries, func(e *entry) bool { return !e.flight.Answered() })
	crowded := len(l.entries) > 2*p.cfg.MaxPending // copies whose confirmations never came
	p.mu.Unlock()
	if crowded {
		l.link.drop()
	} else if stuck {
		_ = channel.Close()
	}
}

// closed answers what was on its way when a channel was closed: by the server because of one message, by a lost
// connection, or by us (nil).
func (l *lane) closed(e *amqp.Error) {
	p := l.link.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	l.takeReturns()
	var open []*entry
	for _, one := range l.entries {
		if one.confirm != nil && one.confirm.Acked() {
			l.confirmed(one)
		} else {
			open = append(open, one)
		}
	}
	l.channel, l.returns, l.entries = nil, nil, nil
	if e == nil || l.link.conn.IsClosed() || !e.Server {
		for _, one := range open {
			p.flights.Settle(one.flight, connectionLost.errorf("closed before the answer: %w", reason(e)))
		}
		return
	}
	if limit, ok := sizeLimit(e); ok {
		p.limit = limit
	}
	if len(open) == 1 {
		p.blame(open[0], e)
		return
	}
	for _, one := range open {
		p.suspect(one)
		p.flights.Settle(one.flight, channelClosed.errorf("the server closed the channel because of one of %d messages: %w", len(open), e))
	}
}

func reason(e *amqp.Error) error {
	if e == nil {
		return errNotNow
	}
	return e
}

// smallest is a payload that every server takes.
const smallest = 16 << 10

// mayCloseChannel reports whether the server may close the channel because of a message: so it goes alone. The caller has the
// lock.
func (p *Publisher) mayCloseChannel(id outbox.ID, to address, size int) bool {
	_, suspect := p.suspects[id]
	_, denied := p.denied[to]
	_, taken := p.taken[to.exchange]
	_, fixed := p.route.fixed() // then what holds for one message holds for all
	return suspect || denied || size > p.largest || !taken && !fixed
}

// took notes that the server took a message, and lets others go that waited to know. The caller has the lock.
func (p *Publisher) took(l *link, e *entry) {
	delete(p.suspects, e.flight.ID)
	delete(p.denied, e.to)
	news := e.size > p.largest
	p.largest = max(p.largest, e.size)
	if _, fixed := p.route.fixed(); !fixed {
		if _, taken := p.taken[e.to.exchange]; !taken {
			if len(p.taken) >= maxSuspects {
				clear(p.taken)
			}
			p.taken[e.to.exchange] = struct{}{}
			news = true
		}
	}
	if !news {
		return
	}
	alone := l.lanes[len(l.lanes)-1]
	for f := alone.held.Pop(); f != nil; f = alone.held.Pop() {
		p.flights.Push(f)
	}
}

// maxSuspects bounds what is remembered of messages and addresses that a channel was closed for.
const maxSuspects = 10_000

// suspect makes a message go alone the next time. The caller has the lock.
func (p *Publisher) suspect(e *entry) {
	if len(p.suspects) >= maxSuspects {
		clear(p.suspects)
	}
	p.suspects[e.flight.ID] = struct{}{}
}

// blame answers the one message that a channel was closed for. The caller has the lock.
func (p *Publisher) blame(e *entry, cause *amqp.Error) {
	if cause.Code == codeNotFound || cause.Code == codeRefused {
		if len(p.denied) >= maxSuspects {
			clear(p.denied)
		}
		p.denied[e.to] = struct{}{}
	}
	p.flights.Settle(e.flight, p.judge(cause).result(cause))
}

var sizeText = regexp.MustCompile(`message size \d+ is larger than configured max size (\d+)`)

// sizeLimit is max_message_size, as the server names it to whoever sends a larger message.
func sizeLimit(e *amqp.Error) (int, bool) {
	m := sizeText.FindStringSubmatch(e.Reason)
	if m == nil {
		return 0, false
	}
	limit, err := strconv.Atoi(m[1])
	return limit, err == nil
}

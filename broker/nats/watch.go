package nats

import (
	"context"
	"errors"
	"time"

	"github.com/onwardhq/onward/broker"
)

// How often the goroutines look, with and without messages on their way; when a connection is replaced at the earliest;
// and how long a look-up of the stream may take while messages wait for it.
const (
	watchBusy   = 25 * time.Millisecond
	watchIdle   = time.Second
	redialAfter = 250 * time.Millisecond
	lookupTime  = 2 * time.Second
)

// watch is the goroutine that sees timeouts. It never touches the connection, whose methods all wait while a write does
// not end.
func (p *Publisher) watch() {
	p.regularly(p.busy, func() { p.timeOut(time.Now()) })
}

// mind is the goroutine that sees lost connections. It asks the connection for its state instead of listening, because
// nats.go drops status events that nobody takes at once.
func (p *Publisher) mind() {
	var redialed time.Time
	p.regularly(p.flying, func() {
		p.checkLink()
		if time.Since(redialed) >= redialAfter && p.redial() {
			redialed = time.Now()
		}
	})
}

// regularly calls f until the publisher stops; work makes it look at once, for there was nothing to look at before.
func (p *Publisher) regularly(work <-chan struct{}, f func()) {
	timer := time.NewTimer(watchIdle)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-work:
		case <-p.stop.Done():
			return
		}
		f()
		timer.Reset(p.watchAgain())
	}
}

func (p *Publisher) watchAgain() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open > 0 {
		return watchBusy
	}
	return watchIdle
}

// timeOut answers what has waited for AckTimeout. Batches are in the order of their deadlines.
func (p *Publisher) timeOut(now time.Time) {
	var over []*batch
	p.mu.Lock()
	for len(p.batches) > 0 {
		b := p.batches[0]
		overdue := !now.Before(b.deadline)
		if b.left > 0 && !overdue {
			break
		}
		if overdue {
			over = append(over, b)
		}
		p.batches[0], p.batches = nil, p.batches[1:]
	}
	p.mu.Unlock()
	for _, b := range over {
		p.expire(b, context.DeadlineExceeded)
	}
}

// checkLink answers what was sent on a connection that is no more: its acknowledgement would have come there. It may
// have been stored.
func (p *Publisher) checkLink() {
	p.mu.Lock()
	l := p.link
	p.mu.Unlock()
	epoch, up := l.state()
	p.mu.Lock()
	var answers []pending
	for token, f := range p.flights {
		if f.sent && (f.link != l || f.epoch < epoch || !up) && f.state == away {
			delete(p.flights, token)
			answers = append(answers, pending{f, connectionLost.errorf("the connection broke before the answer")})
		}
	}
	p.mu.Unlock()
	p.answerAll(answers)
}

// state is the connection's epoch and whether it is up, both of one moment.
func (l *link) state() (epoch uint64, up bool) {
	for {
		epoch, up = l.epoch(), l.nc.IsConnected()
		if l.epoch() == epoch {
			return epoch, up
		}
	}
}

// redial replaces a connection that nats.go has closed for good, if it is ours, and reports whether it tried.
func (p *Publisher) redial() bool {
	p.mu.Lock()
	old := p.link
	p.mu.Unlock()
	if p.dial == nil || !old.nc.IsClosed() {
		return false
	}
	nc, err := p.dial()
	if err != nil {
		return true
	}
	l, err := p.newLink(nc)
	if err != nil {
		nc.Close()
		return true
	}
	p.mu.Lock()
	p.link = l
	p.mu.Unlock()
	old.close(true)
	p.checkLink()
	return true
}

// doubt is a message whose answer a look-up of the stream decides.
type doubt struct {
	token uint64
	why   situation
	cause error
}

// again sends a message that was in doubt.
func (p *Publisher) again(token uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.flights[token]; f != nil {
		f.state = queued
		p.queue.push(f)
		signal(p.work)
	}
}

// question puts a message in doubt and asks for the stream, if nobody does already.
func (p *Publisher) question(token uint64, why situation, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flights[token]
	if f == nil {
		return
	}
	f.state = doubtful
	p.doubts = append(p.doubts, doubt{token, why, cause})
	if len(p.doubts) == 1 {
		p.group.Go(p.resolve)
	}
}

// resolve looks the stream up and answers all that was in doubt before.
func (p *Publisher) resolve() {
	for asked := p.forget(0); asked > 0; asked = p.forget(asked) {
		ctx, cancel := context.WithTimeout(p.stop, lookupTime)
		s, err := p.lookPatiently(ctx, true)
		cancel()
		p.mu.Lock()
		doubts := p.doubts[:asked:asked]
		p.mu.Unlock()
		for _, d := range doubts {
			if d.why == unseen && err == nil && s.unsafe == nil {
				p.again(d.token)
				continue
			}
			if f := p.take(d.token); f != nil {
				p.answer(f, d.resolve(f.subject, s, err))
			}
		}
	}
}

// forget drops the first n doubts and returns how many are left.
func (p *Publisher) forget(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.doubts = p.doubts[n:]; len(p.doubts) == 0 {
		p.doubts = nil
	}
	return len(p.doubts)
}

// resolve is the answer for a message that found no stream, in the light of the stream.
func (d doubt) resolve(subject string, s *stream, err error) broker.Result {
	switch {
	case errors.Is(err, errNoStream):
		return noStream.result(errors.Join(err, d.cause))
	case err != nil:
		return noJetStream.result(errors.Join(err, d.cause))
	case s.unsafe != nil:
		return unsafe.result(errors.Join(s.unsafe, d.cause))
	case len(s.Config.Subjects) == 0:
		return noSubjects.errorf("stream %s takes no subjects: %w", s.Config.Name, d.cause)
	case covers(s.Config.Subjects, subject):
		return justChanged.errorf("stream %s takes %q by now: %w", s.Config.Name, subject, d.cause)
	}
	return unroutable.errorf("stream %s takes %q, and not %q: %w", s.Config.Name, s.Config.Subjects, subject, d.cause)
}

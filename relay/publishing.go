package relay

import (
	"context"
	"fmt"
	"sync"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay/core"
)

// answers gathers the publisher's answers, from any goroutine, until the machine's takes them.
type answers struct {
	mu    sync.Mutex
	list  []core.Answer
	spare []core.Answer
	ready chan struct{}
}

func (a *answers) add(answer core.Answer) {
	a.mu.Lock()
	a.list = append(a.list, answer)
	first := len(a.list) == 1
	a.mu.Unlock()
	if first {
		select {
		case a.ready <- struct{}{}:
		default:
		}
	}
}

// take returns what has come; the slice is good until the take after the next.
func (a *answers) take() []core.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.list
	a.list, a.spare = a.spare[:0], list
	return list
}

// call is one Publish of a batch: it makes sure that each message is answered once, whatever the publisher does.
type call struct {
	turn     *turn
	ticket   uint64
	batch    []broker.Envelope
	mu       sync.Mutex
	answered []bool
	left     int                // messages without an answer
	end      context.CancelFunc // of the publisher's context; set once Publish has returned
}

func (t *turn) publish(io context.Context, e core.Publish) {
	c := &call{turn: t, ticket: e.Ticket, batch: e.Batch, answered: make([]bool, len(e.Batch)), left: len(e.Batch)}
	if t.feed.rules.Pipeline {
		t.pipeline.add(func() { c.run(io) })
		return
	}
	go c.run(io)
}

func (c *call) done(i int, r broker.Result) {
	if i < 0 || i >= len(c.answered) {
		return
	}
	c.mu.Lock()
	again := c.answered[i]
	c.answered[i] = true
	if !again {
		c.turn.claims.lost(&c.batch[i], r)
	}
	if !again {
		c.left--
	}
	c.endIfAnswered()
	c.mu.Unlock()
	if !again {
		c.turn.answers.add(core.Answer{Ticket: c.ticket, Index: i, Result: r})
	}
}

// endIfAnswered ends the publisher's context when nobody needs it any more: a timer for each message until its time is over
// would be most of what a busy relay remembers.
func (c *call) endIfAnswered() {
	if c.left == 0 && c.end != nil {
		c.end()
	}
}

func (c *call) returned(end context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end = end
	c.endIfAnswered()
}

func (c *call) open() (indexes []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, ok := range c.answered {
		if !ok {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// run publishes the batch. A publisher that panics is asked again for each message alone, so that the message at fault
// is found and the others do not pay for it.
func (c *call) run(io context.Context) {
	timeout := c.turn.feed.publishTimeout()
	ctx, cancel := context.WithTimeout(io, timeout)
	defer c.returned(cancel) // answers may come after Publish has returned: ctx lives until the last, or until its time is over
	batch, index := c.batch, func(i int) int { return i }
	if c.turn.claims != nil {
		batch, index = c.admitted(ctx)
	}
	if len(batch) == 0 {
		return
	}
	fault := c.try(ctx, batch, index)
	if fault == nil {
		return
	}
	open := c.open()
	for _, i := range open {
		one := fault
		if len(open) > 1 {
			one = c.try(ctx, c.batch[i:i+1], func(int) int { return i })
		}
		if one != nil {
			c.done(i, broker.Result{Outcome: broker.Retry, Code: broker.CodePanic, Err: one})
		}
	}
}

// try calls the publisher and returns what it panicked with.
func (c *call) try(ctx context.Context, batch []broker.Envelope, index func(int) int) (fault error) {
	defer func() {
		if p := recover(); p != nil {
			fault = &outbox.Error{Code: broker.CodePanic, Op: "publish", Detail: fmt.Sprintf("the publisher panicked: %v", p)}
		}
	}()
	c.turn.feed.sink.Publisher.Publish(ctx, batch, func(i int, r broker.Result) { c.done(index(i), r) })
	return nil
}

// probe asks the publisher whether its destination takes messages.
func (t *turn) probe(io context.Context) {
	ctx, cancel := context.WithTimeout(io, t.feed.publishTimeout())
	defer cancel()
	err := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = &outbox.Error{Code: broker.CodePanic, Op: "check", Detail: fmt.Sprintf("the publisher panicked: %v", p)}
			}
		}()
		return t.feed.sink.Publisher.Check(ctx)
	}()
	t.tell(io, t.events, core.Probed{Err: err})
}

// pipeline runs calls one after the other, for a publisher that keeps the order in which it is called.
type pipeline struct {
	mu      sync.Mutex
	waiting []func()
	running bool
}

func (p *pipeline) add(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, f)
	if !p.running {
		p.running = true
		go p.run()
	}
}

func (p *pipeline) run() {
	for {
		p.mu.Lock()
		if len(p.waiting) == 0 {
			p.running = false
			p.mu.Unlock()
			return
		}
		f := p.waiting[0]
		p.waiting = p.waiting[1:]
		p.mu.Unlock()
		f()
	}
}

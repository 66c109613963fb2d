package jsonl

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Publisher writes to one file or stream. It is safe for concurrent use. One goroutine of its own writes; Close ends it.
type Publisher struct {
	name   string // for people
	lines  *encoder
	target target

	mu      sync.Mutex
	queue   []*item // oldest first
	round   []*item // what the writer has taken last
	open    int     // messages whose done has not returned
	closing bool

	work     chan struct{}   // tells the writer that the queue has something
	checks   chan chan error // asks the writer to check
	idle     chan struct{}   // closed when open is 0 while closing
	stop     context.Context // ends the writer
	stopNow  context.CancelFunc
	finished chan struct{} // closed when the writer has ended
}

var (
	_ broker.Publisher = (*Publisher)(nil)
	_ broker.Describer = (*Publisher)(nil)
)

// target is where lines go: a file or a stream. The writer alone uses it, but for interrupt.
type target interface {
	write(lines [][]byte) []broker.Result // one for each line
	check() error
	close()
	interrupt() // ends a write that does not come back, if that can be done
	positions() bool
}

// item is a message without an answer.
type item struct {
	batch *batch
	index int
	line  []byte
	state state
}

type state uint8

const (
	made state = iota // its call of Publish has it yet
	queued
	writing  // it may be in the file
	answered // or being answered
)

// batch is a call of Publish.
type batch struct {
	done    func(i int, r broker.Result)
	items   []*item
	open    int
	unwatch func() bool // ends the watch over its context
}

// NewPublisher makes a publisher. The file need not exist yet, nor its folder: Check says what is missing.
func NewPublisher(c Config) (*Publisher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	lines, err := newEncoder(c.Wire)
	if err != nil {
		return nil, err
	}
	p := &Publisher{
		name: c.Path, lines: lines,
		work: make(chan struct{}, 1), checks: make(chan chan error), idle: make(chan struct{}), finished: make(chan struct{}),
	}
	p.stop, p.stopNow = context.WithCancel(context.Background())
	if c.Path != "" {
		p.target = newFile(c, p.stop.Done())
	} else {
		s, err := newStream(c.Output)
		if err != nil {
			return nil, unavailable("open standard output", err)
		}
		p.name, p.target = s.f.Name(), s
	}
	go p.run()
	return p, nil
}

// Capabilities: positions for files, the name that the file will have for good and the offset of the line's first byte:
// events.jsonl:4096. No pipeline: where a line did not fit, a shorter one behind it may.
func (p *Publisher) Capabilities() broker.Capabilities {
	return broker.Capabilities{Positions: p.target.positions()}
}

// Describe says what a line is.
func (p *Publisher) Describe() string { return p.lines.wire.Describe() }

// Check opens the file, which it makes where it is missing, and locks it; after a write for which there was no room it
// tries one of the same length. Of a stream it says whether its reader is known to have gone.
func (p *Publisher) Check(ctx context.Context) error {
	op := "check " + p.name
	answer := make(chan error, 1)
	err := ctx.Err()
	if err == nil {
		select {
		case p.checks <- answer:
		case <-ctx.Done():
			return unavailable(op, ctx.Err())
		case <-p.stop.Done():
			return unavailable(op, errClosed)
		}
		select {
		case err = <-answer:
		case <-ctx.Done():
			err = ctx.Err()
		case <-p.finished:
			err = errClosed
		}
	}
	if err != nil {
		return unavailable(op, err)
	}
	return nil
}

// errClosed: the publisher is closed.
var errClosed = errors.New("jsonl: the publisher is closed")

// Publish writes in the order of its calls. The lines are made before it returns, so nothing of the batch is kept.
func (p *Publisher) Publish(ctx context.Context, messages []broker.Envelope, done func(i int, r broker.Result)) {
	if len(messages) == 0 {
		return
	}
	b := &batch{done: done}
	refused := b.encode(p.lines, messages)
	b.open = len(b.items)
	b.unwatch = context.AfterFunc(ctx, func() { p.giveUp(b.items, ctx.Err()) })
	if err := p.accept(ctx, b, len(messages)); err != nil {
		b.unwatch()
		for i := range messages {
			done(i, failure(err))
		}
		return
	}
	for i, err := range refused {
		done(i, broker.Result{Outcome: broker.Rejected, Code: outbox.CodeOf(err), Err: err})
	}
	p.ended(len(refused))
}

// encode makes the lines, and returns what is wrong with messages of which there is none.
func (b *batch) encode(lines *encoder, messages []broker.Envelope) (refused map[int]error) {
	size := 0
	for i := range messages {
		size += 512 + len(messages[i].Payload)
	}
	text := make([]byte, 0, size)
	for i := range messages {
		from := len(text)
		whole, err := lines.appendLine(text, &messages[i])
		if err != nil {
			if refused == nil {
				refused = map[int]error{}
			}
			refused[i] = err
			continue
		}
		text = whole
		b.items = append(b.items, &item{batch: b, index: i, line: text[from:len(text):len(text)]})
	}
	return refused
}

// accept puts the batch into the queue, unless it is too late.
func (p *Publisher) accept(ctx context.Context, b *batch, n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, it := range b.items { // from now on giveUp answers when the context ends
		it.state = queued
	}
	if p.open += n; len(b.items) == 0 {
		b.unwatch()
	}
	p.queue = append(p.queue, b.items...)
	select {
	case p.work <- struct{}{}:
	default:
	}
	return nil
}

// giveUp answers what has no answer yet.
func (p *Publisher) giveUp(items []*item, err error) {
	results := make([]broker.Result, len(items))
	p.mu.Lock()
	for i, it := range items {
		if results[i] = failure(err); it.state == writing {
			results[i] = cutShort(err)
		}
	}
	late := p.claim(items)
	p.queue = slices.DeleteFunc(p.queue, func(it *item) bool { return it.state == answered })
	p.mu.Unlock()
	p.answer(items, results, late)
}

// claim marks what has no answer yet, and says which those are. The caller has the mutex.
func (p *Publisher) claim(items []*item) (mine []bool) {
	mine = make([]bool, len(items))
	for i, it := range items {
		if it.state == made || it.state == answered {
			continue
		}
		mine[i], it.state = true, answered
		if it.batch.open--; it.batch.open == 0 {
			it.batch.unwatch()
		}
	}
	return mine
}

func (p *Publisher) answer(items []*item, results []broker.Result, mine []bool) {
	n := 0
	for i, it := range items {
		if mine[i] {
			it.batch.done(it.index, results[i])
			n++
		}
	}
	p.ended(n)
}

// ended: n messages have their answer.
func (p *Publisher) ended(n int) {
	if n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open -= n; p.open == 0 && p.closing {
		close(p.idle)
	}
}

// run is the writer. What comes while it writes is one write, and one sync, of the next round.
func (p *Publisher) run() {
	defer close(p.finished)
	defer p.target.close()
	for {
		select {
		case <-p.work:
			for items := p.take(); len(items) > 0; items = p.take() {
				p.write(items)
			}
		case answer := <-p.checks:
			answer <- p.target.check()
		case <-p.stop.Done():
			return
		}
	}
}

func (p *Publisher) write(items []*item) {
	lines := make([][]byte, len(items))
	for i, it := range items {
		lines[i] = it.line
	}
	results := p.target.write(lines)
	p.mu.Lock()
	mine := p.claim(items)
	p.round = nil
	p.mu.Unlock()
	p.answer(items, results, mine)
}

// roundBytes is what one round writes, or one line that is longer.
const roundBytes = 4 << 20

// take returns the oldest messages; they may be in the file from now on.
func (p *Publisher) take() []*item {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop.Err() != nil {
		return nil
	}
	n, size := 0, 0
	for n < len(p.queue) && (n == 0 || size+len(p.queue[n].line) <= roundBytes) {
		size += len(p.queue[n].line)
		p.queue[n].state = writing
		n++
	}
	p.round = slices.Clone(p.queue[:n])
	p.queue = slices.Delete(p.queue, 0, n)
	return p.round
}

// Close waits for the answers on their way until ctx ends; what is left then is answered Uncertain if it was being
// written, and Unavailable if not. A write that does not come back keeps the file open until it does.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closing {
		p.closing = true
		if p.open == 0 {
			close(p.idle)
		}
	}
	p.mu.Unlock()
	select {
	case <-p.idle:
	case <-ctx.Done():
		p.abandon(ctx.Err())
	}
	p.stopNow()
	select {
	case <-p.finished:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandon answers all that has no answer, and takes up nothing more.
func (p *Publisher) abandon(err error) {
	p.stopNow()
	p.target.interrupt()
	p.mu.Lock()
	left := slices.Concat(p.round, p.queue)
	p.mu.Unlock()
	p.giveUp(left, err)
}

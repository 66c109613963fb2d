// Package inflight keeps the messages that a publisher has on their way: in a queue for the goroutine that sends them, with the time
// that each has, and its answer, once. It is for drivers of brokers with a connection of their own, whose own goroutines find out what
// became of each message, in any order.
//
// The driver's mutex guards it, so that a message and the connection that it was sent on are one matter: methods that say so are called
// with the lock.
package inflight

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Config says how messages are kept.
type Config struct {
	// Name is what errors begin with: the broker.
	Name string
	// Mutex is the driver's.
	Mutex *sync.Mutex
	// AckTimeout is how long a message waits for its answer, to 50 ms.
	AckTimeout time.Duration
	// MaxPending is how many messages may be without an answer at once.
	MaxPending int
	// Look, where it is set, is called with the lock at each look of the watch: every 25 ms while messages are on their way, else every
	// second.
	Look func()
}

// Set is the messages of one publisher. It is safe for concurrent use.
type Set struct {
	cfg Config

	queue   Queue // what is to be sent
	batches []*batch
	open    int // messages whose done has not returned
	pending int // messages that have no answer
	answers []answer
	closing bool

	work     chan struct{} // tells the sender that the queue has something
	busy     chan struct{} // tells the watch that there is something on its way
	answered chan struct{} // tells the answerer that there are answers
	idle     chan struct{} // closed when open is 0 while closing
	stop     context.Context
	stopNow  context.CancelFunc
	group    sync.WaitGroup
	finished chan struct{} // closed when all goroutines have ended
}

// Flight is a message on its way. The mutex guards it.
type Flight struct {
	ID    outbox.ID
	batch *batch
	index int
	state state
	early *broker.Result
}

type state uint8

const (
	queued   state = iota
	building       // the sender reads the envelope: an answer must wait until it has (Flight.early)
	sent           // it may be on the wire
	over           // it has its answer
)

// batch is one call of Publish.
type batch struct {
	envelopes []broker.Envelope
	done      func(i int, r broker.Result)
	flights   []Flight
	deadline  time.Time
	left      int         // messages whose done has not returned
	unwatch   func() bool // ends the watch over its context
}

// New makes a set, which has two goroutines until Close: one sees timeouts, one gives answers.
func New(c Config) *Set {
	s := &Set{
		cfg:  c,
		work: make(chan struct{}, 1), busy: make(chan struct{}, 1), answered: make(chan struct{}, 1),
		idle: make(chan struct{}), finished: make(chan struct{}),
	}
	s.stop, s.stopNow = context.WithCancel(context.Background())
	s.group.Go(s.watch)
	s.group.Go(s.giveAnswers)
	return s
}

// Go runs a goroutine of the driver's, which ends when Stopped ends; Close waits for it. It is for the driver's constructor.
func (s *Set) Go(f func()) { s.group.Go(f) }

// Enter lets Close wait for a call of the driver's, until leave is called; false: Close was called before. Call it with the lock.
func (s *Set) Enter() (leave func(), ok bool) {
	if s.closing {
		return nil, false
	}
	s.group.Add(1)
	return s.group.Done, true
}

// Stopped ends when the publisher is to end: everything has its answer by then.
func (s *Set) Stopped() context.Context { return s.stop }

// Work tells, by a receive, that the queue may have something.
func (s *Set) Work() <-chan struct{} { return s.work }

// Publish puts the batch into the queue and returns, as broker.Publisher has it. Unavailable, sent nowhere: the context had ended, or
// the set is closed. Throttled: more than Config.MaxPending wait for their answers. Later Uncertain, with a code for either: it was
// sent, and had no answer in time, or before its context ended.
func (s *Set) Publish(ctx context.Context, envelopes []broker.Envelope, done func(i int, r broker.Result)) {
	if len(envelopes) == 0 {
		return
	}
	n, refusal := 0, s.unavailable("not sent: the context had ended")
	if ctx.Err() == nil {
		n, refusal = s.enqueue(ctx, envelopes, done)
	}
	for i := n; i < len(envelopes); i++ {
		done(i, refusal)
	}
}

// enqueue takes as many messages as there is room for, from the first, and says why not more.
func (s *Set) enqueue(ctx context.Context, envelopes []broker.Envelope, done func(i int, r broker.Result)) (int, broker.Result) {
	s.cfg.Mutex.Lock()
	defer s.cfg.Mutex.Unlock()
	if s.closing {
		return 0, s.unavailable("not sent: the publisher is closed")
	}
	many := s.result(broker.Throttled, broker.CodeThrottled, "not sent: %d messages wait for their answers", s.pending)
	n := min(len(envelopes), max(0, s.cfg.MaxPending-s.pending))
	if n == 0 {
		return 0, many
	}
	b := &batch{envelopes: envelopes, done: done, flights: make([]Flight, n), deadline: time.Now().Add(s.cfg.AckTimeout), left: n}
	b.unwatch = context.AfterFunc(ctx, func() { s.expire(b, context.Cause(ctx)) })
	for i := range b.flights {
		b.flights[i] = Flight{batch: b, index: i, ID: envelopes[i].ID}
		s.queue.Push(&b.flights[i])
	}
	s.batches = append(s.batches, b)
	if s.open == 0 {
		signal(s.busy)
	}
	s.open += n
	s.pending += n
	signal(s.work)
	return n, many
}

func (s *Set) result(o broker.Outcome, code outbox.Code, format string, args ...any) broker.Result {
	return broker.Result{Outcome: o, Code: code, Err: fmt.Errorf(s.cfg.Name+": "+format, args...)}
}

func (s *Set) unavailable(format string, args ...any) broker.Result {
	return s.result(broker.Unavailable, broker.CodeUnavailable, format, args...)
}

// Next takes the next message that has no answer from the queue, nil where there is none. Its envelope is the caller's until Sent,
// Hold or Settle; an answer that comes meanwhile is Early. Call it with the lock.
func (s *Set) Next() *Flight {
	f := s.queue.Pop()
	if f != nil {
		f.state = building
	}
	return f
}

// Push puts a message that was held back into the queue again. Call it with the lock.
func (s *Set) Push(f *Flight) {
	s.queue.Push(f)
	signal(s.work)
}

// Envelope is the message, for whom Next gave it to.
func (f *Flight) Envelope() *broker.Envelope { return &f.batch.envelopes[f.index] }

// Early is the answer of a message whose time was over while the sender had its envelope: it must not be sent, and is to be settled
// with this. Nil: there is none. Call it with the lock.
func (f *Flight) Early() *broker.Result { return f.early }

// Sent says that the message may be on the wire from now on; its envelope must not be touched any more. Call it with the lock.
func (f *Flight) Sent() { f.state = sent }

// Hold says that the message waits again. Call it with the lock.
func (f *Flight) Hold() { f.state = queued }

// Answered reports whether the message has its answer. Call it with the lock.
func (f *Flight) Answered() bool { return f.state == over }

// Pending is how many messages have no answer. Call it with the lock.
func (s *Set) Pending() int { return s.pending }

// Closing reports whether Close was called. Call it with the lock.
func (s *Set) Closing() bool { return s.closing }

// answer is what a flight gets from the goroutine that gives answers. Nobody else calls done once a flight has begun: a done
// that takes its time must not keep those waiting who listen to the server, whose client may drop what nobody takes.
type answer struct {
	flight *Flight
	result broker.Result
}

// Settle gives a message its answer; a second one is nothing. Call it with the lock.
func (s *Set) Settle(f *Flight, r broker.Result) {
	if f.state == over {
		return
	}
	f.state = over
	s.pending--
	s.answers = append(s.answers, answer{f, r})
	signal(s.answered)
}

// giveAnswers calls done.
func (s *Set) giveAnswers() {
	stop := s.stop.Done()
	for {
		s.cfg.Mutex.Lock()
		answers := s.answers
		s.answers = nil
		ended := s.stop.Err() != nil && s.open == 0
		s.cfg.Mutex.Unlock()
		for _, a := range answers {
			s.give(a)
		}
		if len(answers) > 0 {
			continue
		}
		if ended {
			return
		}
		select {
		case <-s.answered:
		case <-stop:
			stop = nil // from here on only what is left
		}
	}
}

func (s *Set) give(a answer) {
	b := a.flight.batch
	b.done(a.flight.index, a.result)
	s.cfg.Mutex.Lock()
	defer s.cfg.Mutex.Unlock()
	s.open--
	if b.left--; b.left == 0 {
		b.unwatch()
		b.envelopes = nil
	}
	if s.open == 0 && s.closing {
		close(s.idle)
	}
}

// cut answers a message whose time is over, or leaves that to the sender. The caller has the lock.
func (s *Set) cut(f *Flight, whenSent, whenNot broker.Result) {
	switch f.state {
	case sent:
		s.Settle(f, whenSent)
	case queued:
		s.Settle(f, whenNot)
	case building:
		if f.early == nil {
			f.early = &whenNot
		}
	case over:
	}
}

// expire answers what is left of a batch.
func (s *Set) expire(b *batch, cause error) {
	whenSent := s.result(broker.Uncertain, broker.CodeUnconfirmed, "no answer before the context ended: %w", cause)
	if errors.Is(cause, context.DeadlineExceeded) {
		whenSent = s.result(broker.Uncertain, broker.CodePublishTimeout, "no answer: %w", cause)
	}
	whenNot := s.unavailable("not sent: %w", cause)
	s.cfg.Mutex.Lock()
	defer s.cfg.Mutex.Unlock()
	for i := range b.flights {
		s.cut(&b.flights[i], whenSent, whenNot)
	}
}

// abandon answers everything that is left, because Close may wait no longer.
func (s *Set) abandon(cause error) {
	whenSent := s.result(broker.Uncertain, broker.CodeUnconfirmed, "no answer before the publisher was closed: %w", cause)
	whenNot := s.unavailable("not sent before the publisher was closed: %w", cause)
	s.cfg.Mutex.Lock()
	defer s.cfg.Mutex.Unlock()
	for _, b := range s.batches {
		for i := range b.flights {
			s.cut(&b.flights[i], whenSent, whenNot)
		}
	}
}

// Close waits for the answers on their way until ctx ends; what is left then is answered Uncertain if it was sent, and Unavailable if
// not. Then Stopped ends, and Close waits for the goroutines until ctx ends.
func (s *Set) Close(ctx context.Context) error {
	s.cfg.Mutex.Lock()
	if !s.closing {
		s.closing = true
		if s.open == 0 {
			close(s.idle)
		}
		go s.finish()
	}
	s.cfg.Mutex.Unlock()
	select {
	case <-s.idle:
	case <-ctx.Done():
		s.abandon(ctx.Err())
	}
	s.stopNow()
	select {
	case <-s.finished:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish waits for the goroutines, which end when stop does.
func (s *Set) finish() {
	<-s.stop.Done()
	s.group.Wait()
	close(s.finished)
}

// signal wakes whoever waits on c, or will.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

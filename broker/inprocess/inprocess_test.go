package inprocess_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/broker/inprocess"
	"github.com/onwardhq/onward/outbox"
)

// box is what a handler was given.
type box struct {
	mu      sync.Mutex
	arrived []brokertest.Message
	grown   chan struct{}
	down    bool
	frozen  chan struct{}
}

func (b *box) take(ctx context.Context, m broker.Envelope) error {
	b.mu.Lock()
	frozen := b.frozen
	b.mu.Unlock()
	if frozen != nil {
		select {
		case <-frozen:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return inprocess.Unavailable(errors.New("down"))
	}
	got := brokertest.Message{Payload: bytes.Clone(m.Payload)}
	for name, value := range m.Headers() {
		got.Headers = append(got.Headers, brokertest.Header{Name: strings.Clone(name), Value: strings.Clone(value)})
	}
	b.arrived = append(b.arrived, got)
	close(b.grown)
	b.grown = make(chan struct{})
	return nil
}

func (b *box) check(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return errors.New("down")
	}
	return nil
}

func (b *box) set(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

func (b *box) freeze(*testing.T) (thaw func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	frozen := make(chan struct{})
	b.frozen = frozen
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.frozen = nil
		close(frozen)
	}
}

func (b *box) read(ctx context.Context, n int) ([]brokertest.Message, error) {
	for {
		b.mu.Lock()
		all, grown := slices.Clone(b.arrived), b.grown
		b.mu.Unlock()
		if len(all) >= n {
			return all, nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T) brokertest.Harness {
		t.Helper()
		b := &box{grown: make(chan struct{})}
		return brokertest.Harness{
			Topic: "orders",
			Open: func(t *testing.T) broker.Publisher {
				t.Helper()
				return publisher(t, b.take, inprocess.Config{Check: b.check})
			},
			Read:   b.read,
			Stop:   func(*testing.T) { b.set(true) },
			Start:  func(*testing.T) { b.set(false) },
			Freeze: b.freeze,
		}
	})
}

func publisher(t *testing.T, h inprocess.Handler, c inprocess.Config) *inprocess.Publisher {
	t.Helper()
	p, err := inprocess.NewPublisher(h, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// publish returns the answer for one message.
func publish(ctx context.Context, p broker.Publisher) broker.Result {
	answer := make(chan broker.Result, 1)
	m := broker.Envelope{Record: &outbox.Record{Message: outbox.Message{ID: outbox.NewID(), Topic: "t", Type: "T", Key: "k"}}}
	p.Publish(ctx, []broker.Envelope{m}, func(_ int, r broker.Result) { answer <- r })
	return <-answer
}

func TestAnErrorSaysWhatBecomesOfItsMessage(t *testing.T) {
	t.Parallel()
	cause := errors.New("no")
	for name, c := range map[string]struct {
		handler inprocess.Handler
		want    broker.Result
	}{
		"nil":         {func(context.Context, broker.Envelope) error { return nil }, broker.Result{Outcome: broker.Accepted}},
		"an error":    {func(context.Context, broker.Envelope) error { return cause }, broker.Result{Outcome: broker.Retry, Code: inprocess.CodeHandlerFailed}},
		"rejected":    {func(context.Context, broker.Envelope) error { return inprocess.Reject(cause) }, broker.Result{Outcome: broker.Rejected, Code: broker.CodeRejected}},
		"unavailable": {func(context.Context, broker.Envelope) error { return inprocess.Unavailable(cause) }, broker.Result{Outcome: broker.Unavailable, Code: broker.CodeUnavailable}},
		"throttled": {
			func(context.Context, broker.Envelope) error { return inprocess.Throttle(cause, time.Second) },
			broker.Result{Outcome: broker.Throttled, Code: broker.CodeThrottled, After: time.Second},
		},
		"a verdict within an error": {
			func(context.Context, broker.Envelope) error { return errors.Join(cause, inprocess.Reject(cause)) },
			broker.Result{Outcome: broker.Rejected, Code: broker.CodeRejected},
		},
		"a code of its own": {
			func(context.Context, broker.Envelope) error { return &outbox.Error{Code: "orders/closed", Err: cause} },
			broker.Result{Outcome: broker.Retry, Code: "orders/closed"},
		},
	} {
		r := publish(t.Context(), publisher(t, c.handler, inprocess.Config{}))
		if c.want.Outcome != broker.Accepted && !errors.Is(r.Err, cause) {
			t.Errorf("%s: the cause is %v", name, r.Err)
		}
		if r.Err = nil; r != c.want {
			t.Errorf("%s: %+v, want %+v", name, r, c.want)
		}
	}
}

func TestAPanicIsAnErrorOfItsMessage(t *testing.T) {
	t.Parallel()
	r := publish(t.Context(), publisher(t, func(context.Context, broker.Envelope) error { panic("at the disco") }, inprocess.Config{}))
	if r.Outcome != broker.Retry || r.Code != broker.CodePanic || !strings.Contains(r.Err.Error(), "at the disco") || !strings.Contains(r.Err.Error(), "inprocess_test.go") {
		t.Errorf("%s %s %v, want where it was", r.Outcome, r.Code, r.Err)
	}
}

// What the handler had done when its context ended is not known.
func TestAHandlerThatIsInterruptedIsUncertain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	r := publish(ctx, publisher(t, func(ctx context.Context, _ broker.Envelope) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}, inprocess.Config{}))
	if r.Outcome != broker.Uncertain || r.Code != broker.CodeUnconfirmed {
		t.Errorf("%s %s, want uncertain", r.Outcome, r.Code)
	}
}

func TestNoMoreMessagesThanAskedForAreWithTheHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		p := publisher(t, func(context.Context, broker.Envelope) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-time.After(time.Second) // of the bubble's own time
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}, inprocess.Config{Concurrency: 3})
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { publish(t.Context(), p) })
		}
		all.Wait()
		if most != 3 {
			t.Errorf("%d messages were with the handler at once, want 3", most)
		}
	})
}

func TestBadConfigurationIsRefusedWholly(t *testing.T) {
	t.Parallel()
	_, err := inprocess.NewPublisher(nil, inprocess.Config{Concurrency: -1})
	if !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(err.Error(), "handler") || !strings.Contains(err.Error(), "-1") {
		t.Errorf("%v, want both faults", err)
	}
}

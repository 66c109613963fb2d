package inflight_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/broker/inflight"
	"github.com/onwardhq/onward/broker/membroker"
)

// driver is a publisher over a set, whose sender hands each message to send.
type driver struct {
	mu      sync.Mutex
	flights *inflight.Set
	send    func(d *driver, e broker.Envelope, f *inflight.Flight)
	check   func() error
}

func newDriver(c inflight.Config, send func(d *driver, e broker.Envelope, f *inflight.Flight)) *driver {
	d := &driver{send: send}
	c.Name, c.Mutex = "driver", &d.mu
	if c.AckTimeout == 0 {
		c.AckTimeout = 10 * time.Second
	}
	if c.MaxPending == 0 {
		c.MaxPending = 10_000
	}
	d.flights = inflight.New(c)
	d.flights.Go(d.write)
	return d
}

func (d *driver) write() {
	for {
		d.mu.Lock()
		f := d.flights.Next()
		d.mu.Unlock()
		if f != nil {
			record := *f.Envelope().Record // while it is the sender's
			record.Payload, record.Headers = bytes.Clone(record.Payload), maps.Clone(record.Headers)
			e := *f.Envelope()
			e.Record = &record
			d.mu.Lock()
			early := f.Early()
			if early != nil {
				d.flights.Settle(f, *early)
			} else {
				f.Sent()
			}
			d.mu.Unlock()
			if early == nil {
				d.send(d, e, f)
			}
			continue
		}
		select {
		case <-d.flights.Work():
		case <-d.flights.Stopped().Done():
			return
		}
	}
}

// settle is Settle with the lock.
func (d *driver) settle(f *inflight.Flight, r broker.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flights.Settle(f, r)
}

func (*driver) Capabilities() broker.Capabilities { return broker.Capabilities{} }

func (d *driver) Check(ctx context.Context) error {
	d.mu.Lock()
	closing := d.flights.Closing()
	d.mu.Unlock()
	if closing {
		return errors.New("closed")
	}
	if err := ctx.Err(); err != nil || d.check == nil {
		return err
	}
	return d.check()
}

func (d *driver) Publish(ctx context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) {
	d.flights.Publish(ctx, batch, done)
}

func (d *driver) Close(ctx context.Context) error { return d.flights.Close(ctx) }

// toBroker sends to a broker in memory.
func toBroker(to *membroker.Publisher) func(d *driver, e broker.Envelope, f *inflight.Flight) {
	return func(d *driver, e broker.Envelope, f *inflight.Flight) {
		to.Publish(context.Background(), []broker.Envelope{e}, func(_ int, r broker.Result) {
			r.Position = ""
			d.settle(f, r)
		})
	}
}

// A driver over a set is a publisher as the contract has it.
func TestConformance(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(*testing.T) brokertest.Harness {
		b := membroker.New(membroker.Config{Latency: time.Millisecond})
		return brokertest.Harness{
			Topic: "t",
			Open: func(*testing.T) broker.Publisher {
				d := newDriver(inflight.Config{}, toBroker(b.Publisher()))
				d.check = func() error { return b.Publisher().Check(context.Background()) }
				return d
			},
			Read: func(ctx context.Context, n int) ([]brokertest.Message, error) {
				if n > 0 {
					if _, err := b.Read(ctx, "t", n-1); err != nil {
						return nil, err
					}
				}
				var all []brokertest.Message
				for _, m := range b.Messages("t") {
					one := brokertest.Message{Payload: m.Payload, Position: strconv.FormatInt(m.Position, 10)}
					for _, h := range m.Headers {
						one.Headers = append(one.Headers, brokertest.Header(h))
					}
					all = append(all, one)
				}
				return all, nil
			},
		}
	})
}

// silent sends and hears nothing.
func silent(*driver, broker.Envelope, *inflight.Flight) {}

func TestAMessageWithoutAnAnswerInTimeIsUncertain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(inflight.Config{AckTimeout: 3 * time.Second}, silent)
		began := time.Now()
		r := brokertest.Publish(t, t.Context(), d, brokertest.NewMessage("t", "k"))[0]
		if r.Outcome != broker.Uncertain || r.Code != broker.CodePublishTimeout || r.Err == nil {
			t.Errorf("%+v", r)
		}
		if took := time.Since(began); took < 3*time.Second || took > 3*time.Second+50*time.Millisecond {
			t.Errorf("after %s", took)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// What the sender has not come to is not sent later: its next copy would be overtaken.
func TestWhatWasNotSentIsUnavailableAndStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held, sent := make(chan struct{}), 0
		d := newDriver(inflight.Config{AckTimeout: time.Second}, func(*driver, broker.Envelope, *inflight.Flight) {
			sent++
			<-held
		})
		rs := brokertest.Publish(t, t.Context(), d, brokertest.NewMessages(3, "t")...)
		for i, o := range []broker.Outcome{broker.Uncertain, broker.Unavailable, broker.Unavailable} {
			if rs[i].Outcome != o {
				t.Errorf("message %d: %+v, want %s", i, rs[i], o)
			}
		}
		close(held)
		synctest.Wait()
		if sent != 1 {
			t.Errorf("%d were sent, want the first", sent)
		}
		_ = d.Close(t.Context())
	})
}

// The answer of a message whose time is over while the sender reads it waits until the sender has put it away.
func TestAnAnswerWaitsWhileTheSenderHasTheEnvelope(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		s := inflight.New(inflight.Config{Name: "driver", Mutex: &mu, AckTimeout: time.Second, MaxPending: 1})
		answered := make(chan broker.Result, 1)
		s.Publish(t.Context(), brokertest.NewMessages(1, "t"), func(_ int, r broker.Result) { answered <- r })
		mu.Lock()
		f := s.Next()
		mu.Unlock()
		<-time.After(time.Minute) // of the bubble
		select {
		case r := <-answered:
			t.Fatalf("answered %+v while its envelope was read", r)
		default:
		}
		mu.Lock()
		early := f.Early()
		if early == nil {
			t.Fatal("nobody says that its time is over")
		}
		s.Settle(f, *early)
		s.Settle(f, broker.Result{Outcome: broker.Accepted}) // which comes too late
		mu.Unlock()
		if r := <-answered; r.Outcome != broker.Unavailable {
			t.Errorf("%+v, want unavailable", r)
		}
		_ = s.Close(t.Context())
	})
}

func TestMoreThanMaxPendingAreThrottled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(inflight.Config{MaxPending: 2, AckTimeout: time.Second}, silent)
		before := brokertest.Start(t, t.Context(), d, brokertest.NewMessage("t", ""))
		then := brokertest.Start(t, t.Context(), d, brokertest.NewMessages(3, "t")...)
		rs := append(before(), then()...)
		for i, o := range []broker.Outcome{broker.Uncertain, broker.Uncertain, broker.Throttled, broker.Throttled} {
			if rs[i].Outcome != o {
				t.Errorf("message %d: %+v, want %s", i, rs[i], o)
			}
		}
		_ = d.Close(t.Context())
	})
}

// The server's client may drop what nobody takes, so a done that takes its time keeps no message from being settled.
func TestASlowDoneHoldsNoOtherMessageUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(inflight.Config{}, func(d *driver, _ broker.Envelope, f *inflight.Flight) {
			d.settle(f, broker.Result{Outcome: broker.Accepted})
		})
		held := make(chan struct{})
		answered := 0
		d.Publish(t.Context(), brokertest.NewMessages(100, "t"), func(int, broker.Result) {
			<-held
			answered++
		})
		synctest.Wait()
		d.mu.Lock()
		if n := d.flights.Pending(); n != 0 {
			t.Errorf("%d messages have no answer", n)
		}
		d.mu.Unlock()
		close(held)
		if err := d.Close(t.Context()); err != nil || answered != 100 {
			t.Errorf("%d were answered, %v", answered, err)
		}
	})
}

// A message that was held back comes again, at the end of the queue; one that has its answer does not.
func TestHeldMessagesComeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		s := inflight.New(inflight.Config{Name: "driver", Mutex: &mu, AckTimeout: time.Second, MaxPending: 10})
		batch := brokertest.NewMessages(3, "t")
		s.Publish(t.Context(), batch, func(int, broker.Result) {})
		mu.Lock()
		var held inflight.Queue
		for range 2 {
			f := s.Next()
			f.Hold()
			held.Push(f)
		}
		first := held.Pop()
		s.Push(first)
		s.Settle(held.Pop(), broker.Result{Outcome: broker.Accepted})
		if f := s.Next(); f.ID != batch[2].ID {
			t.Errorf("%s comes first, want the third", f.ID)
		} else {
			s.Settle(f, broker.Result{Outcome: broker.Accepted})
		}
		if f := s.Next(); f != first || held.Pop() != nil || !held.Empty() {
			t.Error("want the first, and no other")
		}
		if f := s.Next(); f != nil {
			t.Errorf("%s comes as well", f.ID)
		}
		s.Settle(first, broker.Result{Outcome: broker.Accepted})
		mu.Unlock()
		_ = s.Close(t.Context())
	})
}

// Close waits for calls that were begun before, until its context ends.
func TestCloseWaitsForCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(inflight.Config{}, silent)
		d.mu.Lock()
		leave, open := d.flights.Enter()
		d.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.Close(ctx); !open || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, with a call that has not returned (%t)", err, open)
		}
		leave()
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if _, open := d.flights.Enter(); open {
			t.Error("a call has begun after Close")
		}
	})
}

func TestTheWatchLooksMoreOftenWhileMessagesAreOnTheirWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		d := newDriver(inflight.Config{Look: func() { looks++ }}, silent)
		count := func() int {
			d.mu.Lock()
			defer d.mu.Unlock()
			before := looks
			d.mu.Unlock()
			<-time.After(4 * time.Second)
			d.mu.Lock()
			return looks - before
		}
		if n := count(); n < 3 || n > 5 {
			t.Errorf("%d looks in 4 s, idle", n)
		}
		d.Publish(t.Context(), brokertest.NewMessages(1, "t"), func(int, broker.Result) {})
		if n := count(); n < 150 {
			t.Errorf("%d looks in 4 s, with a message on its way", n)
		}
		_ = d.Close(t.Context())
	})
}

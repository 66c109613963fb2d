package relay

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onwardhq/onward/internal/failpoint"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
)

// A turn serves a session from one load of it to the next: the machine, owned by the goroutine of run, and one goroutine
// for each kind of I/O, which asks the session for one thing at a time. All of them end with the turn.
//
//	run     the machine's events and effects
//	read    Session.Read
//	settle  Session.Settle
//	parked  Session.Heads and Session.Followers
//	lease   Session.Renew and Session.GiveBack
//	wake    Waker.Wait, where the session has it
//	call    Publisher.Publish and Publisher.Check, one goroutine for each call
type turn struct {
	feed    *feed
	session store.Session
	machine *core.Machine
	start   time.Time

	reads     chan core.Read
	settles   chan core.Settle
	asks      chan core.Effect // ReadHeads, ReadFollowers
	givebacks chan core.GiveBack
	events    chan core.Event
	leases    chan core.Event // unbuffered: a worker that does not turn is not renewed
	wakes     chan struct{}   // somebody says that there may be something to read
	letters   *letters        // nil: dead letters are told to nobody
	claims    *claims         // nil: the publisher claims nothing
	answers   answers
	pipeline  pipeline
	timer     *time.Timer
	quit      chan struct{} // closed when the turn has ended
	graceful  bool          // everything was settled

	stopping   atomic.Bool
	leased     bool // a renewal was answered
	owned      map[int]int64
	paused     map[int64]bool // what the log has said is paused
	relays     int
	unattended int
	reported   core.Counters
	gained     int
	released   int
	rounded    time.Time
	absent     bool      // the broker's check failed
	since      time.Time // and began to
	quiet      time.Time // when that was last logged
	cause      error
	silence    silence
}

func (f *feed) newTurn(session store.Session) *turn {
	rules := f.rules
	_, isWaker := session.(store.Waker)
	rules.Hints = isWaker && f.relay.config.Wakeup != WakeupOff
	t := &turn{
		feed: f, session: session, machine: core.New(rules), start: f.relay.lastBeat(time.Now()), wakes: make(chan struct{}, 1),
		reads: make(chan core.Read, 1), settles: make(chan core.Settle, 1), asks: make(chan core.Effect, 2),
		givebacks: make(chan core.GiveBack, 1), quit: make(chan struct{}), events: make(chan core.Event, 16), leases: make(chan core.Event),
		owned: map[int]int64{}, rounded: time.Now(),
	}
	t.letters, t.claims = f.newLetters(), f.newClaims()
	t.answers.ready = make(chan struct{}, 1)
	t.timer = time.NewTimer(time.Hour)
	return t
}

// run is the machine's goroutine. nil: stopped gracefully.
func (t *turn) run(ctx context.Context) error {
	io, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var workers sync.WaitGroup
	work := []func(context.Context){t.read, t.settle, t.parked, t.lease}
	waiting, waitNoMore := context.WithCancel(io)
	if t.machine.Hints() {
		work = append(work, func(context.Context) { t.wake(waiting) })
	}
	defer t.feed.relay.wakes(t.wakes)()
	for _, work := range work {
		workers.Add(1)
		go func() { defer workers.Done(); work(io) }()
	}
	defer func() {
		t.timer.Stop()
		waitNoMore()
		t.finish(&workers, cancel)
	}()
	round := time.NewTicker(t.feed.relay.config.RoundEvery)
	defer round.Stop()
	done := ctx.Done()
	var grace <-chan time.Time
	var batch []core.Event
	events := []core.Event{core.Tick{}}
	for {
		if over, err := t.do(io, t.machine.Step(time.Since(t.start), events...)); over {
			t.round()
			t.graceful = err == nil
			return err
		}
		events = batch[:0]
		select {
		case e := <-t.events:
			events = append(events, e)
		case e := <-t.leases:
			events = append(events, e)
		case <-t.answers.ready:
		case <-t.wakes:
			events = append(events, core.Woken{})
		case <-t.timer.C:
			events = append(events, core.Tick{})
		case <-round.C:
			if err := t.ticked(); err != nil {
				return err
			}
		case <-done:
			done = nil
			t.stopping.Store(true)
			t.feed.log.Info("stopping: finishing what is in flight")
			grace = time.After(t.feed.relay.config.ShutdownGrace)
			events = append(events, core.Stop{})
		case <-grace:
			return errGrace
		}
		events = t.more(events)
		for _, e := range events {
			t.note(e)
		}
		batch = events
	}
}

// finish waits for the workers. After a graceful end what they have asked for is waited for: a call that is cut off would
// void the session, and with it what it knows beyond the durable cursors.
func (t *turn) finish(workers *sync.WaitGroup, cancel context.CancelFunc) {
	close(t.quit)
	if t.graceful {
		slow := time.AfterFunc(max(t.feed.relay.config.Heartbeat, time.Second), cancel)
		defer slow.Stop()
	} else {
		cancel()
	}
	workers.Wait()
	cancel()
}

var errGrace = errors.New("what was in flight did not end within the shutdown grace: it will be published again")

// more adds what has come meanwhile, so that one step takes it all.
func (t *turn) more(events []core.Event) []core.Event {
	for {
		select {
		case e := <-t.events:
			events = append(events, e)
			continue
		default:
		}
		break
	}
	if as := t.answers.take(); len(as) > 0 {
		t.noteAnswers(as, time.Now())
		events = append(events, core.Published{Answers: as})
	}
	return events
}

// do turns effects into I/O. over: the turn has ended.
func (t *turn) do(io context.Context, effects []core.Effect) (over bool, err error) {
	for _, e := range effects {
		switch e := e.(type) {
		case core.Read:
			t.reads <- e
		case core.Settle:
			t.logDead(e.Settlement)
			t.settles <- e
		case core.ReadHeads, core.ReadFollowers:
			t.asks <- e
		case core.GiveBack:
			t.givebacks <- e
		case core.Publish:
			t.publish(io, e)
		case core.Probe:
			go t.probe(io)
		case core.Timer:
			t.timer.Reset(max(0, e.At-time.Since(t.start)))
		case core.Reload:
			return true, e.Err
		case core.Stopped:
			if e.GaveUp {
				return true, t.brokerAway()
			}
			t.noteDone()
			return true, nil
		}
	}
	return false, nil
}

// tell hands an event to the machine, or drops it when the turn has ended.
func (t *turn) tell(io context.Context, to chan core.Event, e core.Event) {
	select {
	case to <- e:
	case <-io.Done():
	case <-t.quit:
	}
}

// each does what is asked for, one thing at a time, until the turn has ended.
func each[E core.Effect](io context.Context, t *turn, asked <-chan E, do func(E)) {
	for {
		select {
		case <-io.Done():
			return
		case <-t.quit:
			return
		case e := <-asked:
			do(e)
		}
	}
}

func (t *turn) read(io context.Context) {
	each(io, t, t.reads, func(e core.Read) {
		page, err := t.session.Read(io, e.Room)
		t.tell(io, t.events, core.ReadDone{Page: page, Err: err})
	})
}

// wake passes on that messages were committed.
func (t *turn) wake(io context.Context) {
	w, _ := t.session.(store.Waker)
	for w.Wait(io) == nil {
		nudge(t.wakes)
	}
}

func (t *turn) settle(io context.Context) {
	each(io, t, t.settles, func(e core.Settle) {
		t.letters.publish(io, e.Letters)
		failpoint.Hit("relay.settle.published")
		settled, err := t.session.Settle(io, e.Settlement)
		if err == nil {
			t.claims.settled(e.Published, settled.Fenced)
		}
		t.tell(io, t.events, core.Settled{Settled: settled, Err: err})
	})
}

func (t *turn) parked(io context.Context) {
	each(io, t, t.asks, func(e core.Effect) {
		switch e := e.(type) {
		case core.ReadHeads:
			heads, err := t.session.Heads(io, e.Partitions, e.Max)
			t.tell(io, t.events, core.HeadsDone{Heads: heads, Err: err})
		case core.ReadFollowers:
			records, err := t.session.Followers(io, e.Key, store.Place{}, e.Room)
			t.tell(io, t.events, core.FollowersDone{Key: e.Key, Records: records, Err: err})
		}
	})
}

// lease renews every sixth of a heartbeat, at the same times as the relay's other sinks, or sooner where a foreign lease may run out;
// and gives back.
func (t *turn) lease(io context.Context) {
	every := t.feed.relay.config.Heartbeat / 6
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-io.Done():
			return
		case <-t.quit:
			return
		case e := <-t.givebacks:
			failpoint.Hit("relay.giveback.settled")
			err := t.session.GiveBack(io, e.Partitions)
			t.tell(io, t.leases, core.GaveBack{Partitions: e.Partitions, Err: err})
		case <-t.claims.wanted():
			wait.Reset(t.renew(io, every))
		case <-wait.C:
			wait.Reset(t.renew(io, every))
		}
	}
}

func (t *turn) renew(io context.Context, every time.Duration) time.Duration {
	t.claims.asked()
	lease, err := t.session.Renew(io, !t.stopping.Load())
	if err == nil {
		t.claims.answered(lease.Owned)
	}
	return t.renewed(io, lease, err, every)
}

func (t *turn) renewed(io context.Context, lease store.Lease, err error, every time.Duration) time.Duration {
	if err != nil {
		if io.Err() == nil {
			t.tell(io, t.leases, core.RenewFailed{Err: err})
		}
		return max(every, 50*time.Millisecond)
	}
	t.tell(io, t.leases, core.Leased{Lease: lease, Until: lease.Until.Sub(t.start)})
	next := every - time.Since(t.feed.relay.began)%every
	if lease.Recheck > 0 {
		return min(next, max(lease.Recheck, 10*time.Millisecond))
	}
	return next
}

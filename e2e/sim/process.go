package sim

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// mostDrift is how much a process's clock is fast or slow, in thousandths.
const mostDrift = 20

// process is a relay's: what package relay is around the machine, in virtual time.
type process struct {
	w      *world
	no     int
	name   string
	names  int
	drift  int64         // of its clock, in thousandths
	frozen time.Duration // it does nothing before
	cut    time.Duration // nothing of its goes to or from the database before
	run    *run          // nil: it does not run
}

// run is one life of a process: a relay with an id, until it ends, dies or is fenced.
type run struct {
	*process
	no        uint64
	id        outbox.ID
	store     *memstore.Store
	publisher *membroker.Publisher
	session   store.Session
	machine   *core.Machine
	turn      int           // machines so far: what was asked for by an older one is not answered
	began     time.Duration // the machine, on the process's clock
	sent      time.Duration // when the call that is at the server was sent, on the process's clock
	until     time.Duration // of the lease, on the machine's clock
	leased    time.Duration // when the last renewal was done at the server
	stopping  bool
	calls     int // on their way
	reload    func()
	timer     int
	lease     leaseLoop
	wait      time.Duration

	sentOut []*entry // published, and perhaps not settled
	window  int      // of them stored by the broker, answered well or not yet, and not settled
	reads   []*read
}

// leaseLoop renews and gives back, one after the other.
type leaseLoop struct {
	busy, due bool
	giving    []int
}

// read is what one read gave.
type read struct {
	no    uint64
	parts map[int]*readPart
	open  int
}

type readPart struct {
	entries []*entry
	n       int
}

// own is the process's clock.
func (p *process) own() time.Duration {
	return p.w.now + time.Duration(int64(p.w.now)/1000*p.drift)
}

// afterOwn schedules something on the process's clock.
func (p *process) afterOwn(d time.Duration, do func()) {
	p.w.after(time.Duration(int64(max(d, 0))*1000/(1000+p.drift)+1), p, do)
}

func (p *process) start() {
	if p.run != nil {
		return
	}
	w := p.w
	w.runs++
	r := &run{process: p, no: w.runs}
	r.id[6], r.id[8], r.id[14], r.id[15] = 0x70, 0x80, byte(w.runs>>8), byte(w.runs)
	r.store = w.db.Open(func() time.Time { return epoch.Add(r.sent) })
	r.publisher = w.broker.Publisher()
	p.run = r
	w.trace.note(10, r.no)
	w.trace.say(w, "%s starts (run %d)", p.name, r.no)
	r.join()
}

// restart makes a process run that does not, or that is about to end.
func (p *process) restart() {
	if p.run != nil && p.run.stopping {
		p.kill()
	}
	p.start()
}

// kill ends the process at once. What it has sent may arrive.
func (p *process) kill() {
	if p.run == nil {
		return
	}
	p.w.trace.note(11, p.run.no)
	p.w.trace.say(p.w, "%s is killed", p.name)
	p.run.rough("kill")
	p.run = nil
	p.frozen = 0
}

func (r *run) alive() bool { return r.process.run == r }

// call does something at the server after some time, and hands the answer back after some more.
func (r *run) call(do func() (answer func())) {
	w, turn, sent := r.w, r.turn, r.own()
	r.calls++
	w.after(w.latency(), nil, func() { w.atServer(r, sent, turn, do) })
}

func (w *world) atServer(r *run, sent time.Duration, turn int, do func() func()) {
	if r.cut > w.now && r.alive() {
		w.after(r.cut-w.now+w.latency(), nil, func() { w.atServer(r, sent, turn, do) })
		return
	}
	if (!r.alive() || r.turn != turn) && w.chance(0.5) { // it never left
		r.called()
		return
	}
	r.sent = sent
	answer := do()
	w.after(w.latency(), r.process, func() {
		if r.alive() && r.turn == turn {
			answer()
		}
		r.called()
	})
}

// called notes that a call has ended; the next turn begins when none is on its way.
func (r *run) called() {
	if r.calls--; r.calls == 0 && r.reload != nil && r.alive() {
		again := r.reload
		r.reload = nil
		r.afterOwn(r.wait, func() {
			if r.alive() {
				again()
			}
		})
	}
}

func (r *run) join() {
	r.call(func() func() {
		session, err := r.store.Join(ctx, store.Relay{
			ID: r.id, Name: r.name, Lease: r.w.knobs.lease, Heartbeat: r.w.knobs.heartbeat, Page: r.w.knobs.page, PageBytes: r.w.knobs.rules.PageBytes,
		}, store.Sink{Name: sinkName})
		r.w.noteTakeOvers()
		if err == nil {
			r.w.lives = append(r.w.lives, r)
		}
		return func() {
			if err != nil {
				r.afterOwn(100*time.Millisecond, func() {
					if r.alive() {
						r.join()
					}
				})
				return
			}
			r.session = session
			r.serve()
		}
	})
}

// serve begins a turn: a new machine on the session.
func (r *run) serve() {
	if r.turn > 0 {
		r.session.Reset()
	}
	rules := r.w.knobs.rules
	rules.Rand = rand.New(rand.NewPCG(r.w.rng.Uint64(), 1))
	r.turn++
	r.machine, r.began, r.until = core.New(rules), r.own(), 0
	r.reads, r.lease = nil, leaseLoop{}
	if r.stopping {
		r.take(core.Stop{})
	}
	r.take(core.Tick{})
	r.renew()
}

// leave ends the session. It is over when the database knows, or does not.
func (r *run) leave() {
	r.call(func() func() {
		err := r.session.Close(ctx)
		if err == nil {
			r.w.gone(r)
		} else {
			r.rough("left without a word")
		}
		return func() {
			r.process.run = nil
			if r.w.ending {
				r.process.start()
			}
		}
	})
}

func (r *run) renew() {
	if r.lease.busy {
		r.lease.due = true
		return
	}
	r.lease.busy = true
	r.call(func() func() {
		lease, err := r.session.Renew(ctx, !r.stopping)
		at := r.w.now
		r.w.noteTakeOvers()
		return func() { r.renewed(lease, err, at) }
	})
}

func (r *run) renewed(lease store.Lease, err error, at time.Duration) {
	r.lease.busy = false
	every := r.w.knobs.heartbeat / 6 // as package relay does
	wait := max(every, 50*time.Millisecond)
	if err != nil {
		r.take(core.RenewFailed{Err: err})
	} else {
		if wait = every; lease.Recheck > 0 {
			wait = min(every, max(lease.Recheck, 10*time.Millisecond))
		}
		r.until, r.leased = lease.Until.Sub(epoch)-r.began, at
		r.w.noteLease(r, lease)
		r.take(core.Leased{Lease: lease, Until: r.until})
	}
	turn := r.turn
	r.afterOwn(wait, func() {
		if r.alive() && r.turn == turn && r.machine != nil {
			r.renew()
		}
	})
	r.leaseNext()
}

func (r *run) leaseNext() {
	if r.machine == nil || r.lease.busy {
		return
	}
	if ps := r.lease.giving; ps != nil {
		r.lease.giving, r.lease.busy = nil, true
		r.call(func() func() {
			err := r.session.GiveBack(ctx, ps)
			return func() {
				r.lease.busy = false
				if err == nil {
					r.w.reach("partitions given back")
				}
				r.take(core.GaveBack{Partitions: ps, Err: err})
				r.leaseNext()
			}
		})
		return
	}
	if r.lease.due {
		r.lease.due = false
		r.renew()
	}
}

// take hands events to the machine, and does what it says.
func (r *run) take(events ...core.Event) {
	if r.machine == nil {
		return
	}
	r.w.note(r, events)
	effects := r.machine.Step(r.own()-r.began, events...)
	for _, e := range effects {
		if r.machine == nil {
			return
		}
		r.do(e)
	}
	r.w.checkMachine(r)
}

func (r *run) do(e core.Effect) {
	switch e := e.(type) {
	case core.Timer:
		r.timer++
		no, turn := r.timer, r.turn
		r.afterOwn(e.At-(r.own()-r.began), func() {
			if r.alive() && r.timer == no && r.turn == turn {
				r.take(core.Tick{})
			}
		})
	case core.Read:
		r.call(func() func() {
			page, err := r.session.Read(ctx, e.Room)
			r.w.noteRead(r, &page, err)
			return func() { r.take(core.ReadDone{Page: page, Err: err}) }
		})
	case core.Settle:
		r.settle(e.Settlement)
	case core.ReadHeads:
		r.call(func() func() {
			heads, err := r.session.Heads(ctx, e.Partitions, e.Max)
			return func() { r.take(core.HeadsDone{Heads: heads, Err: err}) }
		})
	case core.ReadFollowers:
		r.call(func() func() {
			records, err := r.session.Followers(ctx, e.Key, store.Place{}, e.Room)
			return func() {
				r.w.noteFollowers(records)
				r.take(core.FollowersDone{Key: e.Key, Records: records, Err: err})
			}
		})
	case core.GiveBack:
		r.lease.giving = e.Partitions
		r.leaseNext()
	case core.Publish:
		r.publish(e)
	case core.Probe:
		r.probe()
	case core.Reload:
		r.reloaded(e.Err)
	case core.Stopped:
		r.w.reach("graceful stop")
		r.machine = nil
		r.end(r.leave)
	}
}

// end does something when the calls on their way have ended.
func (r *run) end(then func()) {
	r.turn++
	r.reload, r.wait = then, 0
	r.calls++
	r.called()
}

func (r *run) reloaded(err error) {
	r.w.trace.say(r.w, "%s reloads: %v", r.name, err)
	r.machine = nil
	r.rough("reload")
	if errors.Is(err, store.ErrFenced) {
		r.w.reach("fenced")
		r.end(func() {
			r.process.run = nil
			r.process.start()
		})
		return
	}
	r.w.reach("session loaded again")
	r.end(r.serve)
	r.wait = 20 * time.Millisecond
}

func (r *run) settle(s store.Settlement) {
	r.w.sayVerdicts(r, &s)
	r.call(func() func() {
		foreign := r.w.foreign(r, &s)
		settled, err := r.session.Settle(ctx, s)
		r.w.checkForeign(r, foreign)
		return func() {
			if err == nil {
				r.w.noteSettled(r, &s)
			}
			r.take(core.Settled{Settled: settled, Err: err})
		}
	})
}

// hint tells the machine that something was committed, if the session says so.
func (p *process) hint() {
	r := p.run
	if r == nil || r.machine == nil || !r.w.knobs.hints || r.w.chance(0.2) {
		return
	}
	if w, ok := r.session.(store.Waker); ok && w.Wait(ended) == nil {
		r.w.after(r.w.latency(), p, func() {
			if r.alive() {
				r.w.reach("hint")
				r.take(core.Woken{})
			}
		})
	}
}

func (r *run) probe() {
	turn := r.turn
	r.w.after(r.w.latency(), nil, func() {
		err := r.publisher.Check(ctx)
		r.w.after(r.w.latency(), r.process, func() {
			if r.alive() && r.turn == turn {
				r.take(core.Probed{Err: err})
			}
		})
	})
}

// publish sends a batch to arrive at some later time: together, or each message on its own.
func (r *run) publish(e core.Publish) {
	r.w.checkPublish(r, &e)
	if !r.w.knobs.split || r.w.knobs.pipeline {
		r.send(e.Ticket, 0, e.Batch)
		return
	}
	for i := range e.Batch {
		r.send(e.Ticket, i, e.Batch[i:i+1])
	}
}

func (r *run) send(ticket uint64, first int, batch []broker.Envelope) {
	w, turn, sent := r.w, r.turn, r.w.now
	arrive := func() {
		if !r.alive() && w.chance(0.5) { // it never left
			return
		}
		w.sender = r
		r.publisher.Publish(ctx, batch, func(i int, result broker.Result) {
			w.answered(w.entryOf(batch[i].ID), sent, result.Outcome)
			if r.turn == turn {
				r.take(core.Published{Answers: []core.Answer{{Ticket: ticket, Index: first + i, Result: result}}})
			}
		})
		w.sender = nil
	}
	if w.knobs.pipeline { // what is behind a failure fails if it was handed over before the answer came: the publisher sees to that
		arrive()
		return
	}
	w.after(w.latency(), nil, arrive)
}

package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

var (
	errAnswerLost = errors.New("sim: the answer was lost")
	errRefused    = errors.New("sim: the database does not answer")
)

// ended is a context that has ended: whoever waits with it hears only what is there already.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// backup is the database at a step.
type backup struct {
	of   *memstore.Backup
	step int
}

// databaseFault is what goes wrong with one call.
func (w *world) databaseFault(c memstore.Call) memstore.Fault {
	switch {
	case w.ending:
		return memstore.Fault{}
	case w.now < w.outage:
		return memstore.Fault{Err: errRefused}
	case c.Op == memstore.OpCommit:
		if w.chance(w.knobs.lostCommit) {
			return memstore.Fault{Lost: true, Err: errAnswerLost}
		}
	case w.chance(w.knobs.call.fails):
		return memstore.Fault{Err: errRefused}
	case c.Op != memstore.OpRetain && w.chance(w.knobs.call.lost):
		w.reach("call with an unknown outcome")
		return memstore.Fault{Lost: true, Err: errAnswerLost}
	}
	return memstore.Fault{}
}

// person does one thing, and comes again.
func (w *world) person() {
	if w.ending {
		return
	}
	w.after(w.upTo(2*w.knobs.lookEvery), nil, w.person)
	switch n := w.rng.IntN(10); {
	case n < 5:
		w.look(func(d *store.DeadInfo) { w.requeue(d, w.rng.IntN(2) == 0) })
	case n < 6:
		w.look(w.discard)
	default:
		w.holdBack()
	}
}

// look shows a person some dead letters, of which one is chosen.
func (w *world) look(act func(*store.DeadInfo)) {
	list, err := w.admin.Dead(ctx, store.Filter{Sink: sinkName, Limit: 10})
	if err != nil || len(list.Dead) == 0 { // also before the first relay has made the sink
		return
	}
	act(&list.Dead[w.rng.IntN(len(list.Dead))])
}

func (w *world) requeue(d *store.DeadInfo, acceptReorder bool) {
	e := w.entryOf(d.ID)
	if err := w.admin.Requeue(ctx, store.Act{Sink: sinkName, ID: d.ID}, acceptReorder); err != nil {
		return
	}
	w.trace.note(30, uint64(e.n))
	w.trace.say(w, "requeued %s", e)
	e.excused = e.excused || acceptReorder
	w.reach("requeue")
	if e.key != nil && e.key.line > 0 && w.steps-e.key.line < 100 {
		w.reach("requeue during release")
	}
}

func (w *world) discard(d *store.DeadInfo) {
	e := w.entryOf(d.ID)
	if err := w.admin.Discard(ctx, store.Act{Sink: sinkName, ID: d.ID, Reason: "sim"}); err != nil {
		w.fail("discard of dead letter %s: %v", e, err)
	}
	e.discarded = w.steps
	w.trace.note(31, uint64(e.n))
	w.trace.say(w, "discarded %s", e)
	w.reach("discard")
}

// requeueAll requeues what is dead when the faults have ended; what the broker never takes is discarded.
func (w *world) requeueAll() {
	list, err := w.admin.Dead(ctx, store.Filter{Sink: sinkName, Limit: 1000})
	if err != nil {
		return
	}
	for i := range list.Dead {
		if w.entryOf(list.Dead[i].ID).poison {
			w.discard(&list.Dead[i])
		} else {
			w.requeue(&list.Dead[i], true)
		}
	}
}

// holdBack pauses something, or resumes it.
func (w *world) holdBack() {
	if n := len(w.pauses); n > 0 && w.rng.IntN(3) > 0 {
		i := w.rng.IntN(n)
		w.resume(w.pauses[i])
		w.pauses = slices.Delete(w.pauses, i, i+1)
		return
	}
	act := store.PauseAct{Sink: sinkName, Reason: "sim"}
	switch w.rng.IntN(6) {
	case 0:
		act.Kind = store.PauseSink
	case 1:
		act.Kind, act.Name = store.PauseTopic, oneOf(w, topicBlocks, topicSkips, "*")
	default:
		act.Kind, act.Name = store.PauseKey, oneOf(w, w.keys...).name
	}
	if w.rng.IntN(2) == 0 {
		act.For = w.between(time.Millisecond, 5*time.Second)
	}
	if _, err := w.admin.Pause(ctx, act); err != nil {
		return // before the first relay has made the sink
	}
	w.trace.note(32, uint64(len(w.pauses)))
	w.trace.say(w, "paused %s %s", act.Kind, act.Name)
	w.reach("pause")
	w.pauses = append(w.pauses, act)
}

func (w *world) resume(act store.PauseAct) {
	if err := w.admin.Resume(ctx, act); err == nil {
		w.reach("resume")
	}
}

func (w *world) resumeAll() {
	all, _ := w.admin.Pauses(ctx, sinkName)
	for _, p := range all {
		w.resume(store.PauseAct{Sink: sinkName, Kind: p.Kind, Name: p.Name})
	}
	w.pauses = nil
}

// retain removes what is not needed any more.
func (w *world) retain() {
	if w.knobs.retention < 0 {
		return
	}
	w.after(w.upTo(2*time.Second), nil, w.retain)
	done, err := w.db.Open(nil).Retain(ctx, store.Retention{Published: w.knobs.retention})
	if err == nil && done.Messages > 0 {
		w.trace.note(33, uint64(done.Messages)) //nolint:gosec // not negative
		w.reach("retention")
	}
}

// disaster strikes, and comes again.
func (w *world) disaster() {
	if w.ending {
		return
	}
	w.after(w.upTo(2*w.knobs.disasterEvery), nil, w.disaster)
	p := oneOf(w, w.procs...)
	switch n := w.rng.IntN(100); {
	case n < 25:
		w.reach("kill")
		p.kill()
		if w.rng.IntN(2) == 0 {
			p.rename()
		}
		w.after(w.upTo(2*w.knobs.lease), nil, p.start)
	case n < 40:
		p.frozen = w.now + w.between(w.knobs.lease/10, 3*w.knobs.lease)
		w.trace.say(w, "%s stops until %s", p.name, p.frozen)
		w.reach("freeze")
	case n < 55:
		w.stop(p)
	case n < 63:
		w.reach("broker outage")
		w.broker.SetUnavailable(true)
		w.after(w.upTo(5*time.Second), nil, func() { w.broker.SetUnavailable(false) })
	case n < 66:
		w.broker.SetThrottle(w.upTo(time.Second))
		w.after(w.upTo(2*time.Second), nil, func() { w.broker.SetThrottle(0) })
	case n < 74:
		w.reach("database outage")
		w.outage = w.now + w.upTo(5*time.Second)
	case n < 80:
		p.cut = w.now + w.upTo(2*w.knobs.lease)
		w.reach("black hole")
	case n < 86:
		w.reach("database restart")
		w.trace.say(w, "the database restarts")
		w.restart(func() { w.db.Restart() })
	case n < 93:
		w.backups = append(w.backups, backup{w.db.Backup(), w.steps})
	case n < 97:
		w.comeBack("promote", w.db.Promote)
	default:
		w.comeBack("rebase", w.db.Restore)
	}
}

// stop ends a process gracefully, to start again.
func (w *world) stop(p *process) {
	r := p.run
	if r == nil || r.machine == nil || r.stopping {
		return
	}
	w.trace.note(34, r.no)
	w.trace.say(w, "%s is asked to stop", p.name)
	r.stopping = true
	w.after(0, p, func() {
		if r.alive() && r.machine != nil {
			r.take(core.Stop{})
		}
	})
	w.after(w.upTo(2*w.knobs.lease), nil, p.start)
	w.after(5*w.knobs.lease, nil, func() { // the shutdown grace is over
		if r.alive() {
			p.kill()
			p.start()
		}
	})
}

func (p *process) rename() {
	p.names++
	p.name = fmt.Sprintf("relay-%d.%d", p.no, p.names)
}

// restart does something to the database that ends all transactions and all that sessions remember.
func (w *world) restart(do func()) {
	open := w.open
	w.open = nil
	do()
	for _, t := range open {
		if !t.over {
			t.over = true
			t.abort()
		}
	}
	w.trace.note(35)
}

// comeBack puts the database back to what it was at an earlier step. What was committed since is lost; what was published may come
// again.
func (w *world) comeBack(how string, do func(*memstore.Backup)) {
	if len(w.backups) == 0 || w.reached[how] >= 3 {
		return
	}
	i := w.rng.IntN(len(w.backups))
	b := w.backups[i]
	w.backups = w.backups[:i+1] // what came later is of a history that is no more
	w.reach(how)
	w.trace.say(w, "%s: the database is what it was in step %d", how, b.step)
	w.restart(func() { do(b.of) })
	w.wentBack = w.now
	for _, r := range w.lives {
		r.rough(how)
	}
	w.lives = slices.DeleteFunc(w.lives, func(r *run) bool { return !w.db.Knows(r.id) })
	for _, e := range w.ledger {
		switch {
		case e.committed > b.step && !e.lost:
			e.lost = true
			if e.key != nil {
				e.key.remove(e)
			}
		case e.copies > 0 && !e.lost:
			e.allow(how)
		}
		if e.discarded > b.step {
			e.discarded = 0
			if e.copies == 0 && e.wanted() && e.key != nil && e.due == 0 {
				e.key.add(e)
			}
		}
	}
	w.pauses = nil
	all, _ := w.admin.Pauses(ctx, sinkName)
	for _, p := range all {
		w.pauses = append(w.pauses, store.PauseAct{Sink: sinkName, Kind: p.Kind, Name: p.Name, Reason: "sim"})
	}
}

package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/onwardhq/onward/e2e/harness"
)

// step does one step of the plan when its time has come and messages are in flight, and notes it. timed ends with the faults:
// what lasts is ended then, and undone with ctx.
func (r *run) step(ctx, timed context.Context, s Step) {
	if !pause(timed, time.Until(r.started.Add(s.At))) {
		return
	}
	unsettled, is := r.inFlight(timed)
	if !is {
		return
	}
	f := Fault{Kind: string(s.Kind), At: time.Now().UTC(), Unsettled: unsettled}
	err := r.do(ctx, timed, s, &f)
	if f.End.IsZero() {
		f.End = time.Now().UTC()
	}
	if err != nil {
		f.Error = err.Error()
	}
	r.mu.Lock()
	r.faults = append(r.faults, f)
	r.mu.Unlock()
	text := ""
	if err != nil {
		text = ": could not be done: " + f.Error
	}
	r.say("%s of %s %s, %v%s", f.Kind, f.Target, f.Detail, f.End.Sub(f.At).Round(time.Millisecond), text)
}

// inFlight waits until messages are, and says how many; false: the time is over. Where the database does not answer, nothing can
// be settled, and so something is.
func (r *run) inFlight(ctx context.Context) (unsettled int64, is bool) {
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		backlog, _, _, err := r.database.waiting(asking)
		cancel()
		if err != nil || backlog > 2 {
			return backlog, ctx.Err() == nil
		}
		pause(ctx, 2*time.Millisecond)
	}
	return 0, false
}

func (r *run) do(ctx, timed context.Context, s Step, f *Fault) error {
	rng := rand.New(rand.NewPCG(s.Pick, 1))
	switch s.Kind {
	case RelayKill:
		return r.killRelays(timed, s, f, rng)
	case RelayStop:
		return r.stopRelays(timed, s, f, rng)
	case RelayScale:
		f.Target = fmt.Sprintf("%d relays", s.Amount)
		err := r.scale(s.Amount)
		pause(timed, s.For)
		return errors.Join(err, r.scale(firstRelays))
	case LinkLatency, LinkReset, LinkHole, LinkCut:
		return r.breakLinks(timed, s, f, rng)
	case Terminate, DatabaseRestart, DatabaseCrash, DatabaseFull:
		f.Target, f.Relays = r.Store, len(r.some(rng, mostRelays))
		return r.breakDatabase(ctx, timed, s, f)
	case BrokerRestart, BrokerStop, BrokerFull, BrokerAlarm, BrokerDeny, BrokerRename:
		f.Target, f.Relays = r.Broker, len(r.some(rng, mostRelays))
		return r.breakBroker(ctx, timed, s, f)
	case WriterKill:
		return r.killWriter(timed, s, f, rng)
	case LongTransaction:
		return r.holdTransaction(ctx, timed, s, f, rng)
	case HeldSnapshot:
		return r.holdSnapshot(ctx, timed, s, f)
	case PauseStorm, RequeueStorm, DiscardStorm:
		f.Target = "outbox"
		return r.storm(timed, s, f, rng)
	case PoisonMessages, OversizeMessage:
		w := r.writers[rng.IntN(len(r.writers))]
		f.Target, f.Detail = w.name, fmt.Sprintf("%d messages", s.Amount)
		return w.ask(map[Kind]string{PoisonMessages: Poison, OversizeMessage: Oversize}[s.Kind], s.Amount)
	default:
		return fmt.Errorf("there is no fault %s", s.Kind)
	}
}

// some are up to n relays that run, at random.
func (r *run) some(rng *rand.Rand, n int) (some []*relayProcess) {
	for _, i := range rng.Perm(len(r.relays)) {
		if len(some) < n && r.relays[i].running() {
			some = append(some, r.relays[i])
		}
	}
	return some
}

func named(relays []*relayProcess) string {
	var all []string
	for _, p := range relays {
		all = append(all, p.name)
	}
	return strings.Join(all, " ")
}

func (r *run) killRelays(timed context.Context, s Step, f *Fault, rng *rand.Rand) error {
	some := r.some(rng, s.Amount)
	f.Target, f.Relays = named(some), len(some)
	r.sample()
	for _, p := range some {
		p.kill()
	}
	f.End = time.Now().UTC()
	r.mu.Lock()
	r.meta.RelaysKilled += len(some)
	r.mu.Unlock()
	pause(timed, s.For)
	return r.scale(r.wanted)
}

func (r *run) stopRelays(timed context.Context, s Step, f *Fault, rng *rand.Rand) error {
	some := r.some(rng, s.Amount)
	f.Target, f.Relays = named(some), len(some)
	var err error
	for _, p := range some {
		err = errors.Join(err, p.signal(syscall.SIGSTOP))
	}
	pause(timed, s.For)
	for _, p := range some {
		err = errors.Join(err, p.signal(syscall.SIGCONT))
	}
	return err
}

// scale starts and stops relays until n run, the first ones. Those that leave have half a minute.
func (r *run) scale(n int) error {
	r.wanted = n
	left := make(chan error, len(r.relays))
	for i, p := range r.relays {
		switch {
		case i < n && !p.running():
			p.died = func(exit error) { r.broken("%s ended by itself: %v", p.name, exit) }
			if err := p.begin(); err != nil {
				return err
			}
			r.mu.Lock()
			r.meta.RelaysStarted++
			r.mu.Unlock()
			left <- nil
		case i >= n:
			go func() { left <- p.terminate(30 * time.Second) }()
		default:
			left <- nil
		}
	}
	var err error
	for range r.relays {
		err = errors.Join(err, <-left)
	}
	return err
}

// broken notes what no relay may do.
func (r *run) broken(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meta.Broken = append(r.meta.Broken, fmt.Sprintf(format, args...))
}

// linksOf are the links that a fault takes: one of a relay or of the writers, or those of all relays to one server.
func (r *run) linksOf(f *Fault, rng *rand.Rand) (links []*Link) {
	running := r.some(rng, mostRelays)
	if len(running) == 0 { // all were killed; those that start again meet it
		running = r.relays[:firstRelays]
	}
	f.Detail = toBroker
	if r.Store == Postgres && (r.Broker == JSONLines || rng.IntN(2) == 0) {
		f.Detail = toDatabase
		if rng.IntN(4) == 0 {
			w := r.writers[rng.IntN(len(r.writers))]
			f.Target = writersLink
			return []*Link{w.link}
		}
	}
	if len(running) > 1 && rng.IntN(3) > 0 {
		running = running[:1]
	}
	f.Target, f.Relays = named(running), len(running)
	for _, p := range running {
		if f.Detail == toDatabase {
			links = append(links, p.database)
		} else {
			links = append(links, p.broker)
		}
	}
	return links
}

func (r *run) breakLinks(timed context.Context, s Step, f *Fault, rng *rand.Rand) error {
	links := r.linksOf(f, rng)
	for _, l := range links {
		switch s.Kind {
		case LinkLatency:
			l.Latency(time.Duration(s.Amount) * time.Millisecond)
		case LinkReset:
			l.Reset()
		case LinkHole:
			l.Hole()
		default: // cut, below
		}
	}
	if s.Kind == LinkCut {
		return cut(timed, links, rng.IntN(2), int64(s.Amount))
	}
	pause(timed, s.For)
	for _, l := range links {
		if s.Kind == LinkHole && s.Flip {
			l.Reset() // what was held back is lost
		}
		l.Fill()
		l.Latency(0)
	}
	return nil
}

// cut cuts links, and waits until they have said as much as that takes.
func cut(timed context.Context, links []*Link, direction int, n int64) error {
	patient, cancel := context.WithTimeout(timed, 3*time.Second)
	defer cancel()
	var group sync.WaitGroup
	var ended atomic.Int64
	for _, l := range links {
		group.Go(func() { ended.Add(int64(l.Cut(patient, direction, n))) })
	}
	group.Wait()
	if ended.Load() == 0 {
		return errors.New("too little was said")
	}
	return nil
}

const (
	startPatience = time.Minute
	roomLeft      = 64 << 10
)

func (r *run) breakDatabase(ctx, timed context.Context, s Step, f *Fault) error {
	starting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	switch s.Kind {
	case Terminate:
		whose, err := r.database.terminate(starting, s.Amount, s.Pick)
		f.Detail = fmt.Sprintf("%d sessions", len(whose))
		return err
	case DatabaseRestart:
		if err := r.database.server.Stop(harness.Immediate); err != nil {
			return err
		}
		return r.database.server.Start(starting)
	case DatabaseCrash:
		if err := r.database.server.Kill(); err != nil {
			return err
		}
		return r.database.server.Start(starting)
	default:
		disk := r.disks[toDatabase]
		err := disk.fill(int64(s.Pick % roomLeft))
		pause(timed, s.For)
		if err := errors.Join(err, disk.empty()); err != nil {
			return err
		}
		restarted, err := r.database.answers(starting)
		if restarted {
			f.Detail = "the server ended, and was started again"
		}
		return err
	}
}

// answers waits until the database does, and starts a server that has ended.
func (d *database) answers(ctx context.Context) (restarted bool, err error) {
	for {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		err := d.db.PingContext(asking)
		cancel()
		if err == nil {
			return restarted, nil
		}
		if d.server != nil && d.server.Ended() {
			restarted = true
			if err := d.server.Start(ctx); err != nil {
				return restarted, err
			}
		}
		if !pause(ctx, 50*time.Millisecond) {
			return restarted, fmt.Errorf("%s does not answer: %w", d.store, err)
		}
	}
}

func (r *run) breakBroker(ctx, timed context.Context, s Step, f *Fault) (err error) {
	starting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	switch s.Kind {
	case BrokerRestart:
		sig := syscall.SIGTERM
		if s.Flip {
			sig = syscall.SIGKILL
		}
		f.Detail = sig.String()
		return r.broker.restart(starting, sig)
	case BrokerStop:
		return r.broker.freeze(timed, s.For)
	case BrokerAlarm:
		if r.Broker == ServiceBus {
			f.Detail, err = r.broker.trouble(starting, timed, s.For, s.Pick)
			return err
		}
		err = r.broker.alarm(starting, true)
		pause(timed, s.For)
		return errors.Join(err, r.broker.alarm(starting, false))
	case BrokerDeny:
		f.Detail = deniedTopic
		err := r.broker.deny(starting, true)
		pause(timed, s.For)
		return errors.Join(err, r.broker.deny(starting, false))
	case BrokerRename:
		name, err := r.broker.rename()
		f.Detail = name
		return err
	default:
		disk := r.disks[toBroker]
		err := disk.fill(int64(s.Pick % roomLeft))
		pause(timed, s.For)
		err = errors.Join(err, disk.empty())
		if r.broker.server == nil || r.Broker == Webhook {
			return err
		}
		f.Detail = "then restarted: a server that met a full disk switches JetStream off"
		if r.Broker == Redis {
			f.Detail = "then started again: a server that could not write its file has ended"
		}
		return errors.Join(err, r.broker.restart(starting, syscall.SIGTERM))
	}
}

// killWriter kills a writer: where Flip is set, as its next COMMIT is on its way; the server gets it, or not.
func (r *run) killWriter(timed context.Context, s Step, f *Fault, rng *rand.Rand) error {
	w := r.writers[rng.IntN(len(r.writers))]
	f.Target, f.Detail = w.name, "at any moment"
	if w.link != nil && s.Flip {
		arrives := rng.IntN(2) == 0
		f.Detail = map[bool]string{true: "COMMIT sent, its answer lost", false: "COMMIT lost"}[arrives]
		struck := make(chan struct{})
		var once atomic.Bool
		w.link.Sent(func(b []byte) bool {
			if !bytes.Contains(b, []byte("commit")) || !once.CompareAndSwap(false, true) {
				return true
			}
			w.kill()
			close(struck)
			return arrives
		})
		select {
		case <-struck:
		case <-timed.Done():
		}
		w.link.Sent(nil)
		f.At = time.Now().UTC()
		f.End = f.At
		if !once.Load() {
			return errors.New("the writer sent no COMMIT in time")
		}
		<-struck
	}
	w.kill()
	r.mu.Lock()
	r.meta.WritersKilled++
	r.mu.Unlock()
	pause(timed, time.Duration(rng.Int64N(int64(500*time.Millisecond))))
	return w.begin()
}

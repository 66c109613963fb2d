// Package demo is `onward demo`: an order service on SQLite, a nats-server with JetStream in this process, relays in processes
// of their own, something that goes wrong, and a proof at the end. It is the real program on real files; nothing in it is
// acted.
package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/sqlite"
)

// Config is one run.
type Config struct {
	For   time.Duration // that the service writes
	Rate  int           // transactions a second
	Fault Fault
	Seed  uint64
	// Folder is where the run may make a folder of its own; it removes it. Empty: the system's folder for such things.
	Folder string
	// Relay makes an `onward` process with these arguments, not yet started.
	Relay func(args ...string) *exec.Cmd
	// Onward runs `onward` with these arguments in this process.
	Onward func(ctx context.Context, args ...string) error
	// Tell is called with each event, by several goroutines; Show ten times a second, by one of them, with how things are.
	Tell func(Event)
	Show func(Scene)
	// Hurry is called with what removes the folder at once, for an end that waits for nobody.
	Hurry func(vanish func())
}

// Report is what a run leaves.
type Report struct {
	Proof
	Config
	Early     bool // somebody ended it
	Took      time.Duration
	SentAgain int // messages that the stream told a relay that it had already
	Relays    []RelayLine
	Events    []Event
}

const (
	patience = 30 * time.Second // for anything that should take a moment
	standby  = "standby"
	lease    = 2 * time.Second // short, so that a take-over is seen soon
)

// demo is a run at work.
type demo struct {
	Config
	board   *board
	folder  string
	config  string // file of the relays
	server  *natsServer
	service *service
	admin   *sqlite.Admin
	relays  []*relayProcess
	endings int // how many relays and brokers were ended in a way that may leave copies
}

// Run runs the demo until its time is over or ctx ends, and proves what happened either way. An error says that it could not
// be run; a proof that does not hold is none.
func Run(ctx context.Context, c Config) (r Report, err error) {
	d := &demo{Config: c}
	began := time.Now()
	d.board = newBoard(c, c.Tell)
	if d.folder, err = os.MkdirTemp(c.Folder, "onward-demo-"); err != nil {
		return r, fmt.Errorf("make a folder for the demo: %w", err)
	}
	c.Hurry(d.vanish)
	defer func() { err = errors.Join(err, d.remove()) }()
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	var watch sync.WaitGroup
	defer func() { stopWatching(); watch.Wait() }()
	watch.Go(func() { d.draw(watching) })

	if err := d.open(ctx); err != nil {
		if ctx.Err() != nil {
			return r, errStopped
		}
		return r, err
	}
	watch.Go(func() { d.watch(watching) })
	if err := d.run(ctx); err != nil {
		return r, err
	}
	evidence, err := d.finish(context.WithoutCancel(ctx))
	if err != nil {
		return r, err
	}
	stopWatching()
	watch.Wait()
	scene := d.board.look()
	r = Report{
		Proof: prove(evidence), Config: c, Early: ctx.Err() != nil, Took: time.Since(began),
		Relays: scene.Relays, Events: scene.Events,
	}
	for _, relay := range scene.Relays {
		r.SentAgain += relay.Again
	}
	return r, nil
}

var errStopped = errors.New("stopped before it began: there is nothing to prove")

func (d *demo) relay(name string) *relayProcess {
	for _, r := range d.relays {
		if r.name == name {
			return r
		}
	}
	return nil
}

// open starts everything but the service, and waits until each sink is served and somebody stands by.
func (d *demo) open(ctx context.Context) (err error) {
	if d.server, err = startServer(ctx, filepath.Join(d.folder, "jetstream")); err != nil {
		return err
	}
	if err := makeStream(ctx, d.server.url(), smallestMax); err != nil {
		return err
	}
	database := "sqlite:" + (&url.URL{Path: filepath.ToSlash(filepath.Join(d.folder, "orders.db"))}).EscapedPath()
	poison := map[int]Poison{}
	if d.Fault == Poisoned {
		poison = poisoned(int(d.For.Seconds() * float64(d.Rate)))
	}
	if d.service, err = openService(ctx, database, newWorkload(d.Seed, poison), d.board.wrote); err != nil {
		return err
	}
	if d.admin, err = sqlite.NewAdmin(d.service.db, sqlite.Config{}); err != nil {
		return err
	}
	d.config = filepath.Join(d.folder, "onward.yaml")
	if err := os.WriteFile(d.config, configuration(database, d.server.url(), d.Fault), 0o600); err != nil {
		return err
	}
	d.board.happened(Plain, "an outbox in %s, JetStream on %s; look around: onward status --config %s", filepath.Base(d.folder), d.server.url(), d.config)
	for _, region := range Regions {
		if err := d.startRelay("relay-"+region, region); err != nil {
			return err
		}
	}
	// Each sink has one partition on SQLite, and whoever is first keeps it: so the one that stands by for all comes last.
	if err := d.await(ctx, func(s *store.Status) bool { return owned(s) == len(Regions) }); err != nil {
		return err
	}
	if err := d.startRelay(standby, ""); err != nil {
		return err
	}
	return d.await(ctx, func(s *store.Status) bool { return s.RelaysLive == len(d.relays) })
}

func (d *demo) startRelay(name, only string) error {
	r := &relayProcess{name: name, command: d.Relay, config: d.config, only: only, board: d.board}
	d.relays = append(d.relays, r)
	d.board.relayIs(name, "")
	return r.start()
}

func owned(s *store.Status) (n int) {
	for i := range s.Sinks {
		n += s.Sinks[i].PartitionsOwned
	}
	return n
}

// await waits until the outbox is so. A relay that ends meanwhile, or some time without success, is an error.
func (d *demo) await(ctx context.Context, so func(*store.Status) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		status, err := d.admin.Status(ctx)
		if err == nil && so(&status) {
			return nil
		}
		for _, r := range d.relays {
			if !r.running() {
				return fmt.Errorf("%s has ended: %s", r.name, d.lastWords(r.name))
			}
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return errors.Join(errors.New("the relays do not come up"), err)
		}
	}
}

func (d *demo) lastWords(relay string) string {
	for _, r := range d.board.look().Relays {
		if r.Name == relay {
			return r.LastWords
		}
	}
	return ""
}

// run lets the service write, and the story happen.
func (d *demo) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.For)
	defer cancel()
	d.board.begin()
	var errs [2]error
	var both sync.WaitGroup
	both.Go(func() { errs[0] = d.service.run(ctx, d.Rate); cancel() })
	both.Go(func() {
		if errs[1] = d.play(ctx); errs[1] != nil {
			cancel()
		}
	})
	both.Wait()
	return errors.Join(errs[:]...)
}

// finish lets the relays publish what is left, stops them, and gathers the evidence.
func (d *demo) finish(ctx context.Context) (*Evidence, error) {
	d.board.phase("finishes")
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	if !d.drained(ctx) {
		d.board.happened(Bad, "the relays have not finished after %s: what is left counts as lost", patience)
	}
	for _, r := range slices.Backward(d.relays) { // who stands by first: it is not to take over now
		if err := r.stop(ctx); err != nil {
			d.board.happened(Bad, "%s", err)
		}
	}
	d.board.phase("is proved")
	e := &Evidence{RolledBack: d.service.rolledBack, Excused: d.endings * window * len(Regions)}
	var err error
	if e.Ledger, err = d.service.ledger(ctx); err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	if e.Arrivals, err = readStream(ctx, d.server.url()); err != nil {
		return nil, err
	}
	e.Unsent, err = d.unsent(ctx, e)
	return e, err
}

const window = 1000 // the default of sinks[].window.messages

// drained waits until nothing moves any more: all is published, or dead, or behind what is dead.
func (d *demo) drained(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	type counts struct{ published, parked, dead int64 }
	var last counts
	for quiet := 0; quiet < 4; {
		status, err := d.admin.Status(ctx)
		var now counts
		moves := err != nil || d.orphaned()
		for i := range status.Sinks {
			s := &status.Sinks[i]
			moves = moves || s.Backlog > 0 || s.Parked[store.ReasonRetry] > 0 || s.Parked[store.ReasonScheduled] > 0
			moves = moves || s.Parked[store.ReasonBehind] > 0 && s.Dead == 0
			now.published += s.Published
			now.parked += s.Parked[store.ReasonBehind]
			now.dead += s.Dead
		}
		if quiet++; moves || now != last {
			quiet = 0
		}
		last = now
		if quiet < 4 && !sleep(ctx, 50*time.Millisecond) {
			return false
		}
	}
	return true
}

// orphaned reports whether a sink has the lease of a relay that is no more. Even if nothing waits there: to see who takes over
// is what this was for.
func (d *demo) orphaned() bool {
	return slices.ContainsFunc(d.relays, func(r *relayProcess) bool { return !r.running() && d.board.serves(r.name) })
}

const mostUnsent = 5000 // that are asked for one by one; more are simply lost

// unsent asks the outbox for what the stream does not have.
func (d *demo) unsent(ctx context.Context, e *Evidence) (unsent []Unsent, err error) {
	there := make(map[string]bool, len(e.Arrivals))
	for _, a := range e.Arrivals {
		there[a.ID] = true
	}
	for _, m := range e.Ledger {
		if there[m.ID] || len(unsent) == mostUnsent {
			continue
		}
		u, err := d.whereabouts(ctx, m)
		if err != nil {
			return nil, err
		}
		unsent = append(unsent, u)
	}
	return unsent, nil
}

// vanish removes the folder under the hands of those who use it: the relays end with this process, whatever ends it.
func (d *demo) vanish() {
	for range 5 { // the server may be writing
		if os.RemoveAll(d.folder) == nil {
			return
		}
	}
}

// remove ends what runs and removes what is there.
func (d *demo) remove() error {
	var errs []error
	for _, r := range d.relays {
		errs = append(errs, r.kill())
	}
	if d.service != nil {
		errs = append(errs, d.service.db.Close())
	}
	if d.server != nil {
		d.server.stop()
	}
	return errors.Join(append(errs, os.RemoveAll(d.folder))...)
}

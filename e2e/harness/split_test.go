package harness

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// split is a scene with a primary and a standby that does not get everything, each reachable at all times. The scene's own writers
// go where the proxy leads.
type split struct {
	*disaster
	primary, standby *Server
	old              *Workload // of writers that talk to the old primary, whatever happens; nil until the split
}

// beforeTheSplit starts writers behind the proxy, and a standby without relays.
func beforeTheSplit(t *testing.T, seed uint64) *split {
	t.Helper()
	settings := []string{"autovacuum=off", "max_wal_senders=4"}
	s := &split{disaster: &disaster{beside: 15 * time.Second, done: make(chan error, 1)}}
	s.primary = server(t, func(dir string) (*Server, error) { return NewPostgres(dir, settings...) }, "ONWARD_TEST_POSTGRES_BIN")
	s.standby = server(t, func(dir string) (*Server, error) { return NewStandby(dir, s.primary.URL, "second", settings...) }, "ONWARD_TEST_POSTGRES_BIN")
	var err error
	if s.proxy, err = NewProxy(t.Context(), s.primary.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.proxy.Close)
	s.scene = openOn(t, s.proxy.URL, needed(t, "ONWARD_TEST_NATS_URL"), 16, &Workload{Keys: 100, Writers: 4, Payload: 64, Pause: 2 * time.Millisecond, Hold: 5 * time.Millisecond, Seed: seed})
	return s
}

// sever stops what the standby gets, and lets writers commit what it will lack.
func (s *split) sever() {
	s.t.Helper()
	ctx := s.t.Context()
	at, err := pgx.Connect(ctx, s.primary.URL)
	s.must(err)
	defer func() { _ = at.Close(context.Background()) }()
	sender := 0
	for ; sender == 0; pause(ctx, 10*time.Millisecond) {
		s.must(ctx.Err())
		s.must(at.QueryRow(ctx, `SELECT coalesce(max(pid), 0) FROM pg_stat_replication WHERE state = 'streaming'`).Scan(&sender))
	}
	s.must(syscall.Kill(sender, syscall.SIGSTOP))
	s.t.Cleanup(func() { _ = syscall.Kill(sender, syscall.SIGCONT) }) // so that it sees that its server has gone
	for before := s.written(); s.written() < before+200; pause(ctx, 10*time.Millisecond) {
		s.must(ctx.Err())
	}
	s.more(50)
}

// promote makes the standby a primary, and lets writers write to the old one.
func (s *split) promote() {
	s.t.Helper()
	s.fault("promoted", "postgres")
	_, err := promote(s.t.Context(), s.standby.URL)
	s.must(err)
	pool, err := pgxpool.New(s.t.Context(), s.primary.URL)
	s.must(err)
	s.t.Cleanup(pool.Close)
	w := s.work
	s.old = &Workload{
		Pool: pool, Schema: w.Schema, Prefix: w.Prefix, Topic: w.Topic, Keys: w.Keys, Writers: w.Writers, Payload: w.Payload,
		Pause: w.Pause, Hold: w.Hold, Seed: w.Seed + 100,
	}
}

// side is what a database has, with what arrived of it.
func (s *split) side(w *Workload) Run {
	s.t.Helper()
	ledger, err := w.Ledger(s.t.Context())
	s.must(err)
	of := map[string]bool{}
	for _, e := range ledger {
		of[e.ID] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	run := Run{Ledger: ledger, Faults: s.faults, Beside: s.beside}
	for _, a := range s.collector.Arrivals() {
		if of[a.ID] {
			run.Arrivals = append(run.Arrivals, a)
		}
	}
	return run
}

// kept wants each database to have everything published, in order, and nothing to come twice but beside the split; nothing may
// arrive that neither has, and no epoch may have two owners. It says how many came twice on each side.
func (s *split) kept() (again [2]int) {
	s.t.Helper()
	sides := []*Workload{s.work, s.old}
	union := map[string]bool{}
	for i, w := range sides {
		var run Run
		v := Verdict{Lost: 1}
		for deadline := time.Now().Add(30 * time.Second); v.Lost > 0 && time.Now().Before(deadline); pause(s.t.Context(), 20*time.Millisecond) {
			run = s.side(w)
			v = Check(run)
		}
		s.t.Logf("%s: %v", []string{"new", "old"}[i], v)
		if !v.OK() {
			s.t.Errorf("promises broken: %v\n%s", v, v.Details())
		}
		for _, e := range run.Ledger {
			union[e.ID] = true
		}
		again[i] = v.Duplicates
	}
	all := Run{Arrivals: s.collector.Arrivals()}
	for _, a := range all.Arrivals {
		if !union[a.ID] {
			s.t.Errorf("%s of %s arrived, and neither database has it", a.ID, a.Relay)
		}
	}
	s.owners(all)
	return again
}

// both writes n messages to each database.
func (s *split) both(ctx context.Context, n int) error {
	done := make(chan error, 2)
	s.work.Messages, s.old.Messages = n, n
	for _, w := range []*Workload{s.work, s.old} {
		go func() { done <- w.Run(ctx) }()
	}
	return errors.Join(<-done, <-done)
}

// A standby that lacks the tail is promoted while the old primary lives on. Some relays and writers follow a proxy to the new one,
// others keep to the old one, and both write the same keys. Each database has everything published, in the order in which it has
// it; what only one of them has comes once; no two relays publish under one epoch.
func TestAnOldPrimaryThatLivesOnHarmsNothing(t *testing.T) {
	t.Parallel()
	s := beforeTheSplit(t, 41)
	for _, name := range []string{"follows-1", "follows-2"} {
		s.start(RelayConfig{Name: name, Lease: 2 * time.Second, Window: 100})
	}
	for _, name := range []string{"stays-1", "stays-2"} {
		s.start(RelayConfig{Name: name, Database: s.primary.URL, Lease: 2 * time.Second, Window: 100})
	}
	s.write()
	s.more(300)
	s.sever()
	s.promote()
	s.must(s.proxy.Switch(s.standby.URL))
	s.fault("switched", "postgres")
	s.rest()
	s.must(s.both(t.Context(), 300))
	again := s.kept()
	for _, name := range []string{"follows-1", "stays-1"} { // further owners on both sides
		s.must(s.relays[name].Signal(syscall.SIGTERM))
		s.must(s.relays[name].Wait(30 * time.Second))
		s.start(s.configs[name])
	}
	s.must(s.both(t.Context(), 200))
	if then := s.kept(); then != again {
		t.Errorf("%v messages came twice, then %v: it goes on repeating", again, then)
	}
	s.reborn()
}

// Connections lead now to the old primary, now to the new one: a relay has both at once. What it remembers of the one it does not
// use on the other. When the old one is gone, the new one goes on alone.
func TestARelayWithConnectionsToTwoPrimariesMixesNothing(t *testing.T) {
	t.Parallel()
	s := beforeTheSplit(t, 42)
	names := []string{"one", "two", "three"}
	for _, name := range names {
		s.start(RelayConfig{Name: name, Database: s.url + "&application_name=" + name, Lease: 2 * time.Second, Window: 100})
	}
	s.write()
	s.more(300)
	s.sever()
	s.rest()
	s.promote()
	direct, err := pgxpool.New(t.Context(), s.standby.URL)
	s.must(err)
	t.Cleanup(direct.Close)
	s.work.Pool = direct
	done := make(chan error, 1)
	go func() { done <- s.both(t.Context(), 600) }()
	both := 0 // how many times a relay was found connected to both
	for n := 0; done != nil || n < 100 || both < 10 && n < 1000; n++ {
		to := s.primary.URL
		if n%2 == 0 {
			to = s.standby.URL
		}
		s.fault("leads elsewhere", "postgres")
		if n%10 == 0 {
			s.must(s.proxy.Switch(to))
		}
		s.must(s.proxy.Lead(to))
		select {
		case err := <-done:
			s.must(err)
			done = nil
		case <-time.After(20 * time.Millisecond):
		}
		here, there := s.connected(s.old.Pool, names), s.connected(direct, names)
		for _, name := range names {
			if here[name] && there[name] {
				both++
			}
		}
	}
	t.Logf("%d times a relay had connections to both", both)
	if both < 10 {
		t.Errorf("%d times a relay had connections to both: too few to show anything", both)
	}
	s.fault("old primary killed", "postgres")
	s.must(s.primary.Kill())
	s.must(s.proxy.Switch(s.standby.URL))
	v := s.survived(s.beside)
	if v.Phantom == 0 {
		t.Error("nothing had gone out of what the old primary alone had")
	}
	s.goesOn(v, s.beside)
	s.reborn()
}

// connected is which of these names have connections to a server.
func (s *split) connected(pool *pgxpool.Pool, names []string) map[string]bool {
	s.t.Helper()
	rows, err := pool.Query(s.t.Context(), `SELECT DISTINCT application_name FROM pg_stat_activity WHERE application_name = ANY ($1)`, names)
	s.must(err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	s.must(err)
	is := map[string]bool{}
	for _, name := range found {
		is[name] = true
	}
	return is
}

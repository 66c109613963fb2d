package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// survived waits until everything that the database still has has arrived, and compares. What was published and is not there any
// more counts as phantom.
func (s *scene) survived(beside time.Duration) Verdict {
	s.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; pause(s.t.Context(), 20*time.Millisecond) {
		ledger, err := s.work.Ledger(s.t.Context())
		s.must(err)
		s.mu.Lock()
		run := Run{Ledger: ledger, Arrivals: s.collector.Arrivals(), Faults: s.faults, Beside: beside}
		s.mu.Unlock()
		v := Check(run)
		if v.Lost == 0 || time.Now().After(deadline) {
			s.t.Log(v)
			if v.Lost > 0 || v.Reordered > 0 || v.Unattributed > 0 || v.Sent == 0 {
				s.t.Errorf("promises broken: %v\n%s", v, v.Details())
				_ = run.Save(filepath.Join(os.TempDir(), "onward-"+s.schema+".json"))
			}
			s.owners(run)
			return v
		}
	}
}

// goesOn wants further messages to arrive, and nothing to come again meanwhile.
func (s *scene) goesOn(before Verdict, beside time.Duration) {
	s.t.Helper()
	s.work.Messages = 200
	s.must(s.work.Run(s.t.Context()))
	if after := s.survived(beside); after.Duplicates != before.Duplicates || after.Phantom != before.Phantom {
		s.t.Errorf("then %v, before %v: it goes on repeating", after, before)
	}
}

// reborn wants the relays to have said it, and the lineage on the wire to have grown.
func (s *scene) reborn() {
	s.t.Helper()
	var lineage int
	s.must(s.pool.QueryRow(s.t.Context(), fmt.Sprintf(`SELECT value::int FROM %q.outbox_meta WHERE name = 'lineage'`, s.schema)).Scan(&lineage))
	if lineage != 2 || !strings.Contains(s.log.String(), "the server has crashed or was promoted or restored") {
		s.t.Errorf("lineage %d, want 2; and the logs do not say what happened", lineage)
	}
	var rebased string
	s.must(s.pool.QueryRow(s.t.Context(), fmt.Sprintf(`SELECT value FROM %q.outbox_meta WHERE name = 'rebased'`, s.schema)).Scan(&rebased))
	if rebased != "" {
		s.t.Errorf("a rebase, which nothing asked for: %s", rebased)
	}
}

// The server is killed with all that it had not written down, while writers commit without waiting for the disk. What survived goes
// out once more at most; with publish_when flushed nothing has gone out that did not survive.
func TestAServerThatIsKilledLosesNothingThatSurvived(t *testing.T) {
	t.Parallel()
	for when, delay := range map[string]string{"committed": "10s", "flushed": "300ms"} { // until the server writes down by itself
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			db := server(t, func(dir string) (*Server, error) {
				return NewPostgres(dir, "synchronous_commit=off", "wal_writer_delay="+delay, "wal_writer_flush_after=1GB", "autovacuum=off", "bgwriter_lru_maxpages=0")
			}, "ONWARD_TEST_POSTGRES_BIN")
			s := openOn(t, db.URL, needed(t, "ONWARD_TEST_NATS_URL"), 16, &Workload{Keys: 100, Writers: 4, Payload: 64, Pause: time.Millisecond, Seed: 21})
			for _, name := range []string{"one", "two"} {
				s.start(RelayConfig{Name: name, Lease: 1500 * time.Millisecond, Window: 200, PublishWhen: when})
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			done := make(chan error, 1)
			go func() { done <- s.work.Run(ctx) }()
			s.must(s.collector.WaitFor(ctx, 100, 30*time.Second))
			_, err := s.pool.Exec(ctx, `CHECKPOINT`) // the tables, too, are not yet on the disk
			s.must(err)
			s.must(s.collector.WaitFor(ctx, s.collector.Distinct()+300, 30*time.Second))
			s.fault("killed", "postgres")
			s.must(db.Kill())
			s.must(db.Start(ctx))
			s.fault("up", "postgres")
			s.must(s.collector.WaitFor(ctx, s.collector.Distinct()+200, 30*time.Second))
			stop()
			s.must(<-done)
			beside := 15 * time.Second
			v := s.survived(beside)
			if v.Phantom > 0 && when == "flushed" {
				t.Errorf("%d messages were published and are gone", v.Phantom)
			}
			s.goesOn(v, beside)
			s.reborn()
		})
	}
}

// A standby that lacks the last transactions is promoted while relays run, and a proxy leads them there; the old primary lives on.
// What the standby has is published; with publish_when replicated nothing was published that it does not have.
func TestAPromotedStandbyLosesNothingThatItHas(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"committed", "replicated"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			settings := []string{"autovacuum=off", "max_wal_senders=4"}
			primary := server(t, func(dir string) (*Server, error) { return NewPostgres(dir, settings...) }, "ONWARD_TEST_POSTGRES_BIN")
			standby := server(t, func(dir string) (*Server, error) { return NewStandby(dir, primary.URL, "second", settings...) }, "ONWARD_TEST_POSTGRES_BIN")
			proxy, err := NewProxy(t.Context(), primary.URL)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(proxy.Close)
			// Writers do not wait for the standby: that is how something can be lost.
			s := openOn(t, proxy.URL+"&synchronous_commit=local", needed(t, "ONWARD_TEST_NATS_URL"), 16, &Workload{Keys: 100, Writers: 4, Payload: 64, Pause: time.Millisecond, Seed: 22})
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			at, err := pgx.Connect(ctx, primary.URL)
			s.must(err)
			defer func() { _ = at.Close(context.Background()) }()
			sender := 0
			for sender == 0 {
				pause(ctx, 10*time.Millisecond)
				s.must(at.QueryRow(ctx, `SELECT coalesce(max(pid), 0) FROM pg_stat_replication WHERE state = 'streaming'`).Scan(&sender))
			}
			if when == "replicated" {
				_, err = at.Exec(ctx, `ALTER SYSTEM SET synchronous_standby_names = 'second'`)
				s.must(err)
				_, err = at.Exec(ctx, `SELECT pg_reload_conf()`)
				s.must(err)
				for state := ""; state != "sync"; pause(ctx, 10*time.Millisecond) {
					s.must(at.QueryRow(ctx, `SELECT max(sync_state) FROM pg_stat_replication`).Scan(&state))
				}
			}
			for _, name := range []string{"one", "two"} {
				s.start(RelayConfig{Name: name, Lease: 1500 * time.Millisecond, Window: 200, PublishWhen: map[string]string{"replicated": "replicated"}[when]})
			}
			done := make(chan error, 1)
			go func() { done <- s.work.Run(ctx) }()
			s.must(s.collector.WaitFor(ctx, 300, 30*time.Second))
			s.must(syscall.Kill(sender, syscall.SIGSTOP))
			defer func() { _ = syscall.Kill(sender, syscall.SIGCONT) }()
			written := func() (n int) {
				s.must(at.QueryRow(ctx, fmt.Sprintf(`SELECT count(*)::int FROM %q.ledger`, s.schema)).Scan(&n))
				return n
			}
			for before := written(); written() < before+200; pause(ctx, 10*time.Millisecond) { // the tail that the standby lacks
				s.must(ctx.Err())
			}
			if when == "committed" {
				s.must(s.collector.WaitFor(ctx, s.collector.Distinct()+50, 30*time.Second))
			}
			s.fault("promoted", "postgres")
			_, err = promote(ctx, standby.URL)
			s.must(err)
			s.must(proxy.Switch(standby.URL))
			s.fault("switched", "postgres")
			if when == "replicated" { // the new primary has no standby: nothing would go out
				for _, name := range []string{"one", "two"} {
					s.must(s.relays[name].Signal(syscall.SIGTERM))
					s.must(s.relays[name].Wait(30 * time.Second))
					s.start(RelayConfig{Name: name, Lease: 1500 * time.Millisecond, Window: 200, PublishWhen: "flushed"})
				}
			}
			s.must(s.collector.WaitFor(ctx, s.collector.Distinct()+200, 30*time.Second))
			stop()
			s.must(<-done)
			beside := 15 * time.Second
			v := s.survived(beside)
			if v.Phantom > 0 && when == "replicated" || v.Phantom == 0 && when == "committed" {
				t.Errorf("%d messages were published and are not on the standby", v.Phantom)
			}
			s.goesOn(v, beside)
			s.reborn()
		})
	}
}

// promote makes a standby a primary, and waits for that. It must not wait for standbys of its own.
func promote(ctx context.Context, url string) (promoted bool, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(ctx) }()
	err = conn.QueryRow(ctx, `SELECT pg_promote()`).Scan(&promoted)
	return promoted, err
}

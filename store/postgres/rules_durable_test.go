package postgres

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The rules of Config.PublishWhen: how safe a message must be before it leaves.

// when opens the outbox with this PublishWhen.
func (g *rig) when(p PublishWhen, pool *pgxpool.Pool) (*logs, error) {
	g.t.Helper()
	l := &logs{}
	s, err := Open(g.t.Context(), pool, Config{
		Schema: g.Schema, TablePrefix: g.Prefix, PublishWhen: p, Logger: slog.New(slog.NewTextHandler(l, nil)),
	})
	if err == nil {
		g.store = s
	}
	return l, err
}

// writeLoosely commits without waiting for disk or standby.
func (g *rig) writeLoosely(durability, text string) {
	g.t.Helper()
	x := g.open()
	x.exec(`SET LOCAL synchronous_commit = ` + durability)
	x.write("a", text)
	x.commit()
}

// With flushed, what is committed and not on the disk yet is not handed over, and comes as soon as it is there.
func TestFlushedWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.start("wal_writer_delay=10s", "bgwriter_lru_maxpages=0", "autovacuum=off")
	for when, waits := range map[PublishWhen]bool{Committed: false, Flushed: true} {
		t.Run(string(when), func(t *testing.T) {
			t.Parallel()
			g := server.outboxIn(t)
			if _, err := g.when(when, g.Pool); err != nil {
				t.Fatal(err)
			}
			s := g.join()
			g.write("a", "1")
			wantTexts(t, "what is flushed", g.drain(s), []string{"1"})
			for range 20 { // somebody else may flush at any moment
				g.writeLoosely("off", "2")
				p, err := s.Read(t.Context(), room(s, 10))
				if err != nil {
					t.Fatal(err)
				}
				if got := payloads(p); (len(got) == 0) == waits {
					if waits && !p.More {
						t.Error("the read says that nothing is left")
					}
					g.Exec(t, `CREATE TABLE `+pgx.Identifier{g.Schema}.Sanitize()+`.other ()`) // a commit that is flushed
					if then := append(got, payloads(g.read(s))...); len(then) == 0 || then[0] != "2" {
						t.Errorf("then came %v", then)
					}
					return
				}
				g.settle(s, done(p))
			}
			t.Errorf("20 messages: none of them was held back = %v", waits)
		})
	}
}

// With replicated, what is not on the standby's disk is not handed over. A standby that is away is waited for, the log says so,
// and a read ends meanwhile. What can never come true is refused at the start.
func TestReplicatedWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	primary := newServer(t)
	primary.start()
	g := primary.outboxIn(t)
	relay := g.As(t, "onward_relay")
	_, err := g.when(Replicated, relay)
	wantUnsupported(t, "no standby is asked for", err, "synchronous_standby_names is empty", "publish_when to flushed")
	primary.set(g, `synchronous_standby_names = 'ANY 1 (one, two)'`)
	_, err = g.when(Replicated, relay)
	wantUnsupported(t, "no right", err, "may not see", `GRANT pg_read_all_stats TO "onward_relay"`)
	g.Exec(t, `BEGIN; SET LOCAL synchronous_commit = local; GRANT pg_read_all_stats TO onward_relay; COMMIT`)
	_, err = g.when(Replicated, relay)
	wantUnsupported(t, "no standby", err, "0 of 1", "start the standbys")
	if _, err := g.when("sometimes", relay); !errors.Is(err, outbox.ErrConfigInvalid) {
		t.Errorf("another word: %v", err)
	}

	standby := primary.standby("one")
	standby.launch()
	var log *logs
	pgtest.Eventually(t, "the standby follows", func() bool { log, err = g.when(Replicated, relay); return err == nil })
	s := g.join()
	g.write("a", "1")
	wantTexts(t, "with the standby", g.drain(s), []string{"1"})

	sender := pgtest.One[int](t, g.Pool, `SELECT pid FROM pg_stat_replication`)
	signal := func(s syscall.Signal) {
		if err := syscall.Kill(sender, s); err != nil {
			t.Error(err)
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	g.writeLoosely("local", "2")
	began := time.Now()
	p := g.read(s)
	if len(p.Parts) > 0 || !p.More || time.Since(began) < durableWait {
		t.Errorf("read %v after %v, more %v", payloads(p), time.Since(began), p.More)
	}
	pgtest.Eventually(t, "the log says why nothing goes out", func() bool {
		if p := g.read(s); len(p.Parts) > 0 {
			t.Fatalf("read %v", payloads(p))
		}
		return len(log.lines("nothing is published")) > 0
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Read(ctx, room(s, 10)); !errors.Is(err, store.ErrReload) {
		t.Errorf("a read that is cancelled: %v", err)
	}
	signal(syscall.SIGCONT)
	// What loads the session again is a commit, which waits for the standby like every other.
	s.Reset()
	if _, err := s.Renew(context.WithoutCancel(t.Context()), true); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, "the message comes", func() bool { return strings.Join(payloads(g.read(s)), " ") == "2" })
	if len(log.lines("publishing goes on")) != 1 {
		t.Errorf("log %v", log.lines(""))
	}
}

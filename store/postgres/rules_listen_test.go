package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// logged is a log that can be read while it is written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// listening is an outbox whose store logs, and listens by a URL or a pool of its own.
func listening(t *testing.T, url string, pool func(*pgtest.DB) *pgxpool.Pool) (*rig, *logged) {
	t.Helper()
	db, log := newOutbox(t, 4), new(logged)
	p := db.Pool
	if pool != nil {
		p = pool(db)
	}
	s, err := Open(t.Context(), p, Config{Schema: db.Schema, TablePrefix: db.Prefix, ListenURL: url, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &rig{DB: db, store: s, t: t}, log
}

// await reads, asks for hints, and says whether they are promised.
func (g *rig) await(s *Session) bool {
	g.t.Helper()
	r := room(s, 1000)
	r.Await = true
	p, err := s.Read(g.t.Context(), r)
	if err != nil {
		g.t.Fatal(err)
	}
	g.settle(s, done(p))
	return p.Awaited > 0
}

// waits begins to wait for hints, and returns how many have come.
func (g *rig) hints(s *Session) (hints func() int) {
	var mu sync.Mutex
	n := 0
	go func() {
		for s.Wait(g.t.Context()) == nil {
			mu.Lock()
			n++
			mu.Unlock()
		}
	}()
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

const polls = "no wake-up by writers: relays poll"

// Where the listening connection is lost relays are asked to poll, which is said once, and wake up again after it is back.
func TestALostListenerIsReplaced(t *testing.T) {
	t.Parallel()
	g, log := listening(t, "", nil)
	s := g.join()
	hints := g.hints(s)
	pgtest.Eventually(t, "hints are promised", func() bool { return g.await(s) })
	for i := range 2 {
		killed := pgtest.One[int](t, g.Pool, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1 AND query LIKE 'LISTEN%'`, g.Schema)
		if killed != 1 {
			t.Fatalf("%d connections listen", killed)
		}
		pgtest.Eventually(t, "it is said", func() bool { return log.count(polls) == i+1 })
		pgtest.Eventually(t, "that it is over, too", func() bool { return log.count("writers wake relays up again") == i+1 })
		pgtest.Eventually(t, "hints are promised", func() bool { return g.await(s) })
		before := hints()
		g.write("a", "x")
		pgtest.Eventually(t, "a hint", func() bool { return hints() > before })
	}
	if n := log.count(polls); n != 2 {
		t.Errorf("it was said %d times", n)
	}
}

// All sessions of a store share one connection, which leaves with the last of them.
func TestOneConnectionListensForAllSinks(t *testing.T) {
	t.Parallel()
	g, _ := listening(t, "", nil)
	a := g.join()
	joined, err := g.store.Join(t.Context(), store.Relay{ID: outbox.NewID(), Name: "other", Lease: time.Hour, Heartbeat: time.Minute}, store.Sink{Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	b := joined.(*Session)
	g.renew(b)
	hintsA, hintsB := g.hints(a), g.hints(b)
	listens := func() int {
		return pgtest.One[int](t, g.Pool, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND query LIKE 'LISTEN%'`, g.Schema)
	}
	pgtest.Eventually(t, "hints are promised", func() bool { return g.await(a) && g.await(b) })
	if n := listens(); n != 1 {
		t.Errorf("%d connections listen", n)
	}
	beforeA, beforeB := hintsA(), hintsB()
	g.write("a", "x")
	pgtest.Eventually(t, "both have a hint", func() bool { return hintsA() > beforeA && hintsB() > beforeB })
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := listens(); n != 1 {
		t.Errorf("%d connections listen for the one that is left", n)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, "nobody listens", func() bool { return listens() == 0 })
}

// Where the way leads through a pooler, nothing is left on any of its connections: it is said, and relays poll.
func TestNobodyListensThroughAPooler(t *testing.T) {
	t.Parallel()
	g, log := listening(t, poolerTo(t, pgtest.URL(t)), nil)
	s := g.join()
	g.hints(s)
	pgtest.Eventually(t, "it is said", func() bool { return log.count(polls) == 1 && log.count("pooler") == 1 })
	if g.await(s) {
		t.Error("hints are promised")
	}
}

// A ListenURL that leads elsewhere is found out: what the pool notifies does not arrive.
func TestAListenURLToAnotherDatabaseIsFoundOut(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/postgres"
	g, log := listening(t, u.String(), nil)
	s := g.join()
	g.hints(s)
	pgtest.Eventually(t, "it is said", func() bool { return log.count(polls) == 1 && log.count("the same database") == 1 })
	if g.await(s) {
		t.Error("hints are promised")
	}
}

// A relay without the right to leave marks says so, and polls.
func TestARelayWithoutTheRightToMarkPolls(t *testing.T) {
	t.Parallel()
	g, log := listening(t, "", func(db *pgtest.DB) *pgxpool.Pool {
		db.Exec(t, sqlOf(db, `REVOKE ALL ON SEQUENCE outbox_asleep FROM onward_relay`))
		return db.As(t, "onward_relay")
	})
	s := g.join()
	g.hints(s)
	pgtest.Eventually(t, "it is said", func() bool { return log.count(polls) == 1 && log.count("GRANT SELECT, UPDATE ON SEQUENCE") == 1 })
	if g.await(s) {
		t.Error("hints are promised")
	}
	g.write("a", "x")
	wantTexts(t, "messages", g.drain(s), []string{"x"})
}

// The same where the right is taken while it runs: the read that would leave the mark does not fail.
func TestARightToMarkThatIsTakenFailsNoRead(t *testing.T) {
	t.Parallel()
	g, _ := listening(t, "", func(db *pgtest.DB) *pgxpool.Pool { return db.As(t, "onward_relay") })
	s := g.join()
	g.hints(s)
	pgtest.Eventually(t, "hints are promised", func() bool { return g.await(s) })
	g.Exec(t, sqlOf(g.DB, `REVOKE ALL ON SEQUENCE outbox_asleep FROM onward_relay`))
	if g.await(s) {
		t.Error("hints are promised")
	}
}

func TestABadListenURLIsRefusedAtOpen(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 4)
	_, err := Open(t.Context(), db.Pool, Config{Schema: db.Schema, TablePrefix: db.Prefix, ListenURL: "postgres://u:secret@host:port/x"})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

// poolerTo stands before a server as a pooler does: a client is told of another process than the one that answers it.
func poolerTo(t *testing.T, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := u.Host
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	t.Cleanup(func() { _ = l.Close() })
	serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			behind, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(context.Background(), "tcp", host)
			if err != nil {
				_ = client.Close()
				continue
			}
			serving.Go(func() { defer func() { _ = behind.Close() }(); _, _ = io.Copy(behind, client) })
			serving.Go(func() { defer func() { _ = client.Close() }(); otherProcess(client, behind) })
		}
	})
	u.Host = l.Addr().String()
	return u.String()
}

// otherProcess passes on what a server says, but for the process that it says it is.
func otherProcess(client io.Writer, server io.Reader) {
	head := make([]byte, 5)
	for {
		if _, err := io.ReadFull(server, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(server, body); err != nil {
			return
		}
		if head[0] == 'K' { // BackendKeyData
			binary.BigEndian.PutUint32(body, binary.BigEndian.Uint32(body)+1)
		}
		if _, err := client.Write(append(head[:5:5], body...)); err != nil {
			return
		}
	}
}

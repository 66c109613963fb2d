package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// rig is an outbox with a store on it.
type rig struct {
	*pgtest.DB
	store *Store
	t     testing.TB
}

func newRig(t testing.TB, partitions int) *rig {
	t.Helper()
	db := newOutbox(t, partitions)
	return &rig{DB: db, store: openStore(t, db, db.Pool), t: t}
}

func openStore(t testing.TB, db *pgtest.DB, pool *pgxpool.Pool) *Store {
	t.Helper()
	s, err := Open(t.Context(), pool, Config{Schema: db.Schema, TablePrefix: db.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// join returns a session of a new relay that holds what it may. Tests that are not about leases give them an hour.
func (g *rig) join(tune ...func(*store.Relay)) *Session {
	g.t.Helper()
	s := g.enter(tune...)
	g.renew(s)
	return s
}

func (g *rig) enter(tune ...func(*store.Relay)) *Session {
	g.t.Helper()
	id := outbox.NewID()
	r := store.Relay{ID: id, Name: "relay-" + id.String(), Host: "here", PID: 1, Lease: time.Hour, Heartbeat: time.Minute}
	for _, f := range tune {
		f(&r)
	}
	s, err := g.store.Join(g.t.Context(), r, store.Sink{Name: "orders"})
	if err != nil {
		g.t.Fatal(err)
	}
	return s.(*Session)
}

// renew renews as a relay does: a session that is void is loaded again.
func (g *rig) renew(s *Session) store.Lease {
	g.t.Helper()
	if errors.Is(s.usable("renew"), store.ErrReload) {
		s.Reset()
	}
	l, err := s.Renew(g.t.Context(), true)
	if err != nil {
		g.t.Fatal(err)
	}
	return l
}

// room is all that a session holds.
func room(s *Session, messages int) store.Room {
	r := store.Room{Messages: messages, Bytes: 1 << 30}
	s.mu.Lock()
	defer s.mu.Unlock()
	for part := range s.ledger.slots {
		r.Partitions = append(r.Partitions, part)
	}
	return r
}

func (g *rig) read(s *Session) store.Page {
	g.t.Helper()
	p, err := s.Read(g.t.Context(), room(s, 1000))
	if err != nil {
		g.t.Fatal(err)
	}
	return p
}

// done settles a page whole.
func done(pages ...store.Page) (m store.Settlement) {
	for _, p := range pages {
		for _, part := range p.Parts {
			m.Done = append(m.Done, store.Done{Partition: part.Partition, Read: p.No, N: len(part.Records)})
			m.Published += len(part.Records)
		}
	}
	return m
}

func (g *rig) settle(s *Session, m store.Settlement) store.Settled {
	g.t.Helper()
	a, err := s.Settle(g.t.Context(), m)
	if err != nil {
		g.t.Fatal(err)
	}
	return a
}

// drain reads and settles until nothing more comes, and returns the payloads in the order in which they came.
func (g *rig) drain(s *Session) (all []string) {
	g.t.Helper()
	for {
		p := g.read(s)
		g.settle(s, done(p))
		all = append(all, payloads(p)...)
		if !p.More {
			return all
		}
	}
}

func payloads(p store.Page) (all []string) {
	for _, part := range p.Parts {
		for _, r := range part.Records {
			all = append(all, string(r.Payload))
		}
	}
	return all
}

const insert = `INSERT INTO %s (topic, type, partition_key, payload) VALUES ('orders', 'OrderPaid', $1, convert_to($2, 'UTF8'))`

// write writes messages of one key, each in a transaction of its own.
func (g *rig) write(key string, texts ...string) {
	g.t.Helper()
	for _, text := range texts {
		g.Exec(g.t, fmt.Sprintf(insert, g.Table("messages")), key, text)
	}
}

// tx is a transaction that a test holds open.
type tx struct {
	g    *rig
	pool *pgxpool.Pool
	conn *pgxpool.Conn
}

// open begins a transaction of its own connection.
func (g *rig) open() *tx {
	g.t.Helper()
	x := &tx{g: g, pool: pgtest.Connect(g.t, g.URL, func(c *pgxpool.Config) { c.MaxConns = 1 })}
	conn, err := x.pool.Acquire(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	x.conn = conn
	g.t.Cleanup(conn.Release)
	x.exec("BEGIN")
	return x
}

func (x *tx) exec(sql string, args ...any) {
	x.g.t.Helper()
	if _, err := x.conn.Exec(context.WithoutCancel(x.g.t.Context()), sql, args...); err != nil {
		x.g.t.Fatal(err)
	}
}

func (x *tx) write(key string, texts ...string) {
	x.g.t.Helper()
	for _, text := range texts {
		x.exec(fmt.Sprintf(insert, x.g.Table("messages")), key, text)
	}
}

func (x *tx) commit() { x.g.t.Helper(); x.exec("COMMIT") }

func TestSessionReadsAndSettles(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	g.write("a", "1", "2", "3")
	s := g.join()
	if got := fmt.Sprint(g.drain(s)); got != "[1 2 3]" {
		t.Fatalf("read %s", got)
	}
	g.write("a", "4")
	if got := fmt.Sprint(g.drain(s)); got != "[4]" {
		t.Fatalf("read %s", got)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := g.join()
	g.write("a", "5")
	if got := fmt.Sprint(g.drain(again)); got != "[5]" {
		t.Fatalf("the next relay read %s", got)
	}
}

// A row of a transaction that began before and committed after others were read comes when it is there, and nothing comes twice.
func TestALateCommitIsReadOnce(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	late := g.open()
	late.write("a", "late")
	g.write("b", "early")
	if got := fmt.Sprint(g.drain(s)); got != "[early]" {
		t.Fatalf("read %s", got)
	}
	late.commit()
	g.write("a", "next")
	if got := fmt.Sprint(g.drain(s), g.drain(s)); got != "[late next] []" {
		t.Fatalf("then read %s", got)
	}
}

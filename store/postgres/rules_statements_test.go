package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// trace notes what a store's pool is asked, but for what begins and ends each transaction.
type trace struct {
	mu      sync.Mutex
	names   map[string]string // of the session's statements, by their text
	batches int
	asked   []question
}

type question struct {
	name string
	sql  string
	args []any
}

func (tr *trace) note(sql string, args []any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if sql == begin || sql == settings || sql == askSettings || sql == commit || strings.HasPrefix(sql, "SET LOCAL ") {
		return
	}
	name := tr.names[sql]
	if name == "" {
		name = sql
	}
	tr.asked = append(tr.asked, question{name: name, sql: sql, args: args})
}

func (tr *trace) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	tr.note(d.SQL, d.Args)
	return ctx
}
func (tr *trace) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (tr *trace) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.batches++
	return ctx
}

func (tr *trace) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	tr.note(d.SQL, d.Args)
}
func (tr *trace) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// take returns what was asked since it was last called, and in how many batches.
func (tr *trace) take() (asked []question, batches int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	asked, batches = tr.asked, tr.batches
	tr.asked, tr.batches = nil, 0
	return asked, batches
}

func namesOf(asked []question) (names []string) {
	for _, q := range asked {
		names = append(names, q.name)
	}
	return names
}

// traced is the outbox with a store whose statements are noted.
func (g *rig) traced() (*rig, *trace) {
	g.t.Helper()
	tr := &trace{names: map[string]string{}}
	pool := pgtest.Connect(g.t, g.URL, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tr })
	return &rig{DB: g.DB, store: openStore(g.t, g.DB, pool), t: g.t}, tr
}

// know lets the trace name the statements of a session.
func (tr *trace) know(s *Session) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for name, sql := range s.sql {
		tr.names[sql] = name
	}
}

// While all is exhausted a poll is one probe by transaction: what it touches does not grow with the partitions.
func TestAnIdlePollIsAWindowRead(t *testing.T) {
	t.Parallel()
	touched := map[int]int{}
	for _, partitions := range []int{4, 256} {
		g, tr := newRig(t, partitions).traced()
		s := g.join()
		tr.know(s)
		g.write("a", numbered("", 100)...)
		g.drain(s)
		g.drain(s)
		tr.take()
		g.read(s)
		asked, batches := tr.take()
		if names := namesOf(asked); !slices.Equal(names, []string{"read_window"}) || batches != 1 {
			t.Fatalf("an idle poll of %d partitions asks %v in %d batches", partitions, names, batches)
		}
		touched[partitions] = g.buffers(asked[0])
		g.write("b", "next")
		wantTexts(t, "then", payloads(g.read(s)), []string{"next"})
		if names, _ := tr.take(); !slices.Equal(namesOf(names), []string{"read_window"}) {
			t.Errorf("what is new is asked for by %v", namesOf(names))
		}
	}
	if touched[4] > 12 || touched[256] > touched[4]+2 {
		t.Errorf("an idle poll touches %d buffers with 4 partitions, and %d with 256", touched[4], touched[256])
	}
}

// A window that holds more than a page is read by shares at once, and nothing of it is lost.
func TestAFullWindowFallsBackToShares(t *testing.T) {
	t.Parallel()
	g, tr := newRig(t, 4).traced()
	s := g.join(pages(8))
	tr.know(s)
	g.drain(s)
	g.drain(s)
	g.write("a", numbered("", 20)...)
	tr.take()
	p := g.read(s)
	if asked, _ := tr.take(); !slices.Equal(namesOf(asked), []string{"read_window", "read_shares"}) {
		t.Errorf("read by %v", namesOf(asked))
	}
	g.settle(s, done(p))
	wantTexts(t, "all", append(payloads(p), g.drain(s)...), numbered("", 20))
}

// A read of partitions that are behind asks few of them for fresh rows, in turn, so that each gives many.
func TestAReadOfABacklogAsksFewPartitions(t *testing.T) {
	t.Parallel()
	g, tr := newRig(t, 8).traced()
	s := g.join(pages(64))
	tr.know(s)
	for part := range 8 {
		g.write(keyIn(part, 8), numbered(fmt.Sprint(part, "/"), 20)...)
	}
	tr.take()
	turns := map[int32]int{}
	n := 0
	for range 50 {
		p := g.read(s)
		n += len(payloads(p))
		asked, _ := tr.take()
		if len(asked) != 1 || asked[0].name != "read_shares" {
			t.Fatalf("read by %v", namesOf(asked))
		}
		parts, want := asked[0].args[3].([]int32), asked[0].args[6].([]int32)
		fresh := 0
		for i, part := range parts {
			if want[i] > 0 {
				fresh++
				turns[part]++
			}
		}
		if fresh > 64/32 && len(p.Parts) > 0 { // when nothing is known to wait, all are asked
			t.Errorf("a read with a page of 64 asks %d partitions for fresh rows, want 2 at most", fresh)
		}
		if !p.More {
			break
		}
	}
	if n != 160 || len(turns) != 8 {
		t.Errorf("%d messages of %d partitions came, want 160 of 8", n, len(turns))
	}
}

// A page says that there is more until all that is visible was read, also in partitions that were read to their end
// before others had their turn.
func TestMoreIsSaidUntilAllThatIsVisibleWasRead(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join(pages(8)) // a read of a backlog asks one partition
	if p := g.read(s); !p.More || len(p.Parts) > 0 {
		t.Fatalf("the first read gave %v, more: %v", payloads(p), p.More)
	}
	want := fourKeys()
	slices.Reverse(want) // the last one is in the partition that has had its turn
	for _, key := range want {
		g.write(key, key)
	}
	wantTexts(t, "then", sorted(g.collect(s, 0, 1, 2, 3)), sorted(want))
}

// A round is one statement that reads all partitions.
func TestOneStatementReadsAllPartitions(t *testing.T) {
	t.Parallel()
	g, tr := newRig(t, 16).traced()
	s := g.join()
	tr.know(s)
	for round, statement := range []string{"read_shares", "read_window"} {
		for part := range 16 {
			g.write(keyIn(part, 16), fmt.Sprint(round))
		}
		tr.take()
		p := g.read(s)
		asked, batches := tr.take()
		if names := namesOf(asked); len(p.Parts) != 16 || !slices.Equal(names, []string{statement}) || batches != 1 {
			t.Errorf("%d of 16 partitions came by %v in %d batches, want all by one %s", len(p.Parts), names, batches, statement)
		}
		g.settle(s, done(p))
		g.drain(s)
	}
}

// A settle is one statement, whatever it settles. Where keys' lines change, what locks and promotes them travels with it.
func TestOneStatementSettlesAllOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, key string
		want      []string
	}{
		{"without keys", "", []string{"settle_verdicts"}},
		{"with keys", "k", []string{"lock_lines", "settle_verdicts", "promote"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g, tr := newRig(t, 4).traced()
			s := g.join()
			tr.know(s)
			for i, text := range []string{"out", "placed", "parked", "dead"} {
				key := c.key
				if key != "" {
					key += fmt.Sprint(i)
				}
				g.write(key, text)
			}
			p := g.read(s)
			m := done(p)
			for _, part := range p.Parts {
				for i := range part.Records {
					r := &part.Records[i]
					v := store.Verdict{Partition: r.Partition, Seq: r.Seq, ID: r.ID, Key: r.Key, Attempts: 1, Code: "onward/rejected", Error: "no"}
					switch string(r.Payload) {
					case "placed":
						v.To, v.Position, v.Attempts = store.Out, "7", 0
					case "parked":
						v.To, v.Reason, v.Due = store.Park, store.ReasonRetry, time.Hour
						v.Tried = &store.Attempt{No: 1, Outcome: "rejected", Code: "onward/rejected", Error: "no"}
					case "dead":
						v.To = store.Dead
					default:
						continue
					}
					m.Verdicts = append(m.Verdicts, v)
				}
			}
			tr.take()
			g.settle(s, m)
			if asked, batches := tr.take(); !slices.Equal(namesOf(asked), c.want) || batches != 1 {
				t.Errorf("settled by %v in %d batches, want %v in one", namesOf(asked), batches, c.want)
			}
			for table, want := range map[string]int{"parked": 1, "dead": 1, "positions": 1, "attempts": 1} {
				if n := pgtest.One[int](t, g.Pool, `SELECT count(*) FROM `+g.Table(table)); n != want {
					t.Errorf("%d rows in %s, want %d", n, table, want)
				}
			}
			g.write(c.key, "next")
			p = g.read(s)
			tr.take()
			g.settle(s, done(p))
			if asked, batches := tr.take(); !slices.Equal(namesOf(asked), []string{"settle"}) || batches != 1 {
				t.Errorf("a healthy settle is %v in %d batches, want one statement", namesOf(asked), batches)
			}
			wantTexts(t, "after a restart", g.collect(g.crash(s), 0, 1, 2, 3), nil)
		})
	}
}

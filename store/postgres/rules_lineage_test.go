package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The rules of rows that were copied from another server: their transactions' numbers mean nothing on this one.

// outboxIn makes an outbox in a fresh schema of a server that the test has to itself.
func (s *server) outboxIn(t *testing.T) *rig {
	t.Helper()
	db := pgtest.NewOn(t, s.url)
	pgtest.EnsureRoles(t, db.Pool, roles...)
	err := Migrate(t.Context(), db.Pool, MigrateConfig{Schema: db.Schema, TablePrefix: db.Prefix, Partitions: 4, Grants: true})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{DB: db, store: openStore(t, db, db.Pool), t: t}
}

// copyTo restores a dump of the outbox on another server, as pg_dump and psql do it, and returns it there.
func (g *rig) copyTo(url string) *rig {
	g.t.Helper()
	bin := os.Getenv(binVariable)
	if bin == "" {
		g.t.Skip(binVariable + ` is not set: it is the folder of pg_dump, see dev/services`)
	}
	file := filepath.Join(g.t.TempDir(), "dump.sql")
	run(g.t, filepath.Join(bin, "pg_dump"), "--schema", g.Schema, "--file", file, "--dbname", g.URL)
	pool := pgtest.Connect(g.t, url, nil)
	pgtest.EnsureRoles(g.t, pool, roles...)
	db := &pgtest.DB{Pool: pool, URL: url, Schema: g.Schema, Prefix: g.Prefix}
	g.t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), `DROP SCHEMA IF EXISTS `+pgx.Identifier{g.Schema}.Sanitize()+` CASCADE`)
	})
	run(g.t, filepath.Join(bin, "psql"), "--no-psqlrc", "--quiet", "--output", os.DevNull, "--set", "ON_ERROR_STOP=1", "--file", file, url)
	return &rig{DB: db, t: g.t}
}

func run(t testing.TB, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(program), err, out)
	}
}

// logs is a log that tests read.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) lines(words string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, words) {
			found = append(found, line)
		}
	}
	return found
}

// openAsRelay opens the outbox with no more rights than a relay's.
func (g *rig) openAsRelay() *logs {
	g.t.Helper()
	l := &logs{}
	s, err := Open(g.t.Context(), g.As(g.t, "onward_relay"), Config{Schema: g.Schema, TablePrefix: g.Prefix, Logger: slog.New(slog.NewTextHandler(l, nil))})
	if err != nil {
		g.t.Fatal(err)
	}
	g.store = s
	return l
}

// joinOver is join where an expired relay holds partitions: it is seen at the first look and taken over at the second.
func (g *rig) joinOver() *Session {
	g.t.Helper()
	s := g.join(pages(8))
	g.renew(s)
	return s
}

// rebased is what the outbox says of its last rebase; nil: there was none.
func (g *rig) rebased() (r *rebase) {
	g.t.Helper()
	if text := pgtest.One[string](g.t, g.Pool, `SELECT value FROM `+g.Table("meta")+` WHERE name = 'rebased'`); text != "" {
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			g.t.Fatal(err)
		}
	}
	return r
}

// spend draws transaction numbers until the next one of a is above that of b by at least 1,000.
func spend(t *testing.T, a, b *pgxpool.Pool) {
	t.Helper()
	const next = `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`
	missing := pgtest.One[int64](t, b, next) + 1000 - pgtest.One[int64](t, a, next)
	if missing > 200_000 {
		t.Skipf("the other server is %d transactions ahead", missing)
	}
	if missing > 0 {
		_, err := a.Exec(t.Context(), fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`, missing))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// youngServer is a server of the test's own whose transactions have lower numbers than those of the common one.
func youngServer(t *testing.T) *server {
	t.Helper()
	s := newServer(t)
	s.start()
	spend(t, pgtest.Connect(t, pgtest.URL(t), nil), pgtest.Connect(t, s.url, nil)) // whatever ran there before
	return s
}

// published are messages as they left, and how often each did.
type published struct {
	order  []string // first copies
	copies map[string]int
}

func (p *published) add(texts ...string) {
	if p.copies == nil {
		p.copies = map[string]int{}
	}
	for _, text := range texts {
		if p.copies[text]++; p.copies[text] == 1 {
			p.order = append(p.order, text)
		}
	}
}

// again counts further copies.
func (p *published) again() (n int64) {
	for _, c := range p.copies {
		n += int64(c - 1)
	}
	return n
}

// scene fills an outbox so that something of everything is under way when the dump is made: late rows that no read has seen, a
// late pass in its middle, a page that was published and not settled, messages that nobody has read. It returns what was published
// and what was written, in the order of each key.
func (g *rig) beforeTheDump(pass bool) (p *published, written []string) {
	g.t.Helper()
	p = &published{}
	keys := fourKeys()
	s := g.join(pages(8))
	put := func(text string, write func(string, ...string), part int) {
		text = fmt.Sprintf("%d/%s", part, text)
		write(keys[part], text)
		written = append(written, text)
	}
	for i := range 40 { // long settled: must not come again
		put(fmt.Sprintf("old-%02d", i), g.write, i%4)
	}
	p.add(g.drain(s)...)
	late, rows := g.open(), 3
	if pass {
		rows = 20
	}
	for i := range rows {
		put(fmt.Sprintf("late-%02d", i), late.write, 1)
	}
	for i := range 12 { // above the late rows, and settled: those of partition 1 are what may come again
		put(fmt.Sprintf("beside-%02d", i), g.write, i%3)
	}
	p.add(g.drain(s)...)
	late.commit()
	if pass {
		g.read(s) // finds too many
		for range 2 {
			page := g.read(s)
			p.add(payloads(page)...)
			g.settle(s, done(page))
		}
	}
	for i := range 6 {
		put(fmt.Sprintf("fresh-%02d", i), g.write, i%4)
	}
	g.expire(s)
	return p, written
}

// ranks are the order in which the scene's messages were committed: equal ones overlapped.
var ranks = map[string]int{"old": 0, "beside": 1, "late": 1, "fresh": 2, "new": 3}

// check wants everything written to have left at least once, and first copies in the order of their key.
func (p *published) check(t *testing.T, written []string) {
	t.Helper()
	for _, text := range written {
		if p.copies[text] == 0 {
			t.Errorf("%s is lost", text)
		}
	}
	if len(p.copies) != len(written) {
		t.Errorf("%d different messages left, %d were written", len(p.copies), len(written))
	}
	last := map[string]string{} // of each key and class
	rank := map[string]int{}    // of each key
	for _, text := range p.order {
		key, name, _ := strings.Cut(text, "/")
		class, _, _ := strings.Cut(name, "-")
		if text < last[key+class] || ranks[class] < rank[key] {
			t.Errorf("%s left after %s, and after one of rank %d", text, last[key+class], rank[key])
		}
		last[key+class], rank[key] = text, max(rank[key], ranks[class])
	}
}

// A copy of an outbox on another server, whose transactions are numbered lower or higher: nothing is lost, what was handed over
// comes again only behind a late row, as many as the log says, and the next start finds nothing to do.
func TestACopyFromAnotherServerIsRebasedOnce(t *testing.T) {
	t.Parallel()
	own := youngServer(t)
	for _, younger := range []bool{true, false} {
		for _, pass := range []bool{false, true} {
			t.Run(fmt.Sprintf("younger=%v/pass=%v", younger, pass), func(t *testing.T) {
				t.Parallel()
				var from *rig
				to := pgtest.URL(t)
				if younger {
					from, to = newRig(t, 4), own.url
				} else {
					from = own.outboxIn(t)
				}
				p, written := from.beforeTheDump(pass)
				lineage := from.lineage()
				g := from.copyTo(to)
				keys := fourKeys()
				for i := range 8 { // before any relay looks
					text := fmt.Sprintf("%d/new-%02d", i%4, i)
					g.write(keys[i%4], text)
					written = append(written, text)
				}
				log := g.openAsRelay()
				s := g.joinOver()
				r := g.rebased()
				if r == nil || r.Again < 1 || r.Again > 12 || len(log.lines("level=ERROR")) != 1 {
					t.Fatalf("rebase %+v, log %v", r, log.lines(""))
				}
				if l := g.renew(s); l.Lineage != fmt.Sprint(g.lineage()) || g.lineage() <= lineage || r.Lineage != l.Lineage {
					t.Errorf("lineage %d after %d; the lease says %s, the log %s", g.lineage(), lineage, l.Lineage, r.Lineage)
				}
				p.add(g.collect(s, 0, 1, 2, 3)...)
				p.check(t, written)
				if p.again() != r.Again {
					t.Errorf("%d messages came again, the rebase says %d", p.again(), r.Again)
				}
				after := g.lineage()
				g.write(keys[1], "1/zz")
				next := g.crash(s)
				wantTexts(t, "after another start", g.collect(next, 0, 1, 2, 3), []string{"1/zz"})
				if g.lineage() != after || !g.rebased().At.Equal(r.At) {
					t.Errorf("the second start made lineage %d of %d, and another rebase: %+v", g.lineage(), after, g.rebased())
				}
				if n := pgtest.One[int](t, g.Pool, `SELECT count(*) FROM `+g.Table("audit")+` WHERE action = 'rebase'`); n != 1 {
					t.Errorf("%d audit lines", n)
				}
			})
		}
	}
}

// A relay that runs while its server is replaced by a copy on another one reads nothing with what it remembers.
func TestARelayThatFindsItselfOnACopyGoesOn(t *testing.T) {
	t.Parallel()
	own := youngServer(t)
	from := newRig(t, 4)
	there := pgtest.Connect(t, own.url, nil).Config().ConnConfig
	var moved atomic.Bool
	pool := pgtest.Connect(t, from.URL, func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			if moved.Load() {
				c.Host, c.Port, c.User, c.Password, c.Database = there.Host, there.Port, there.User, there.Password, there.Database
			}
			return nil
		}
	})
	from.store = openStore(t, from.DB, pool)
	p, keys := &published{}, fourKeys()
	s := from.join()
	write := func(g *rig, texts ...string) []string {
		for i, text := range texts {
			g.write(keys[i%4], fmt.Sprintf("%d/%s", i%4, text))
			texts[i] = fmt.Sprintf("%d/%s", i%4, text)
		}
		return texts
	}
	written := write(from, numbered("old-", 9)...)
	p.add(from.drain(s)...)
	g := from.copyTo(own.url)
	p.add(payloads(from.read(s))...)
	from.settle(s, store.Settlement{}) // the relay is ahead of the copy
	written = append(written, write(g, numbered("new-", 9)...)...)

	moved.Store(true)
	pool.Reset()
	page, err := s.Read(t.Context(), room(s, 100))
	if !errors.Is(err, store.ErrReload) || len(page.Parts) > 0 {
		t.Errorf("on the copy it read %v, %v", payloads(page), err)
	}
	s.Reset()
	lease, err := s.Renew(t.Context(), true)
	if err != nil || len(lease.Owned) != 4 || lease.Lineage != fmt.Sprint(g.lineage()) {
		t.Fatalf("lease %+v, %v; lineage %d", lease, err, g.lineage())
	}
	p.add(from.collect(s, 0, 1, 2, 3)...)
	p.check(t, written)
	if r := g.rebased(); r == nil || r.Again != 0 || p.again() != 0 {
		t.Errorf("%d messages came again, the rebase was %+v", p.again(), r)
	}
}

// Where the sequence goes back under a relay that runs, it sets the cursors anew, once.
func TestASequenceThatGoesBackIsRebased(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	log := g.openAsRelay()
	s := g.join()
	texts := numbered("", 5)
	g.write("a", texts...)
	wantTexts(t, "before", g.drain(s), texts)
	g.setval(3)
	if p, err := s.Read(t.Context(), room(s, 10)); !errors.Is(err, store.ErrReload) || !errors.Is(err, store.ErrLineageChanged) || len(p.Parts) > 0 {
		t.Errorf("read %v, %v; want ErrReload, for ErrLineageChanged", payloads(p), err)
	}
	g.renew(s)
	if r := g.rebased(); r == nil || r.Floor != 5 || r.Again != 0 {
		t.Errorf("rebase %+v, want the floor at 5", r)
	}
	g.write("a", "6")
	wantTexts(t, "after", g.drain(s), []string{"6"})
	wantTexts(t, "after a crash", g.drain(g.crash(s)), nil)
	if n := len(log.lines("cursors are set anew")); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
}

// Where the server's identifier may not be read, the numbers of transactions tell a copy all the same.
func TestACopyIsFoundWithoutTheRightToAskWhichServerItIs(t *testing.T) {
	t.Parallel()
	own := youngServer(t)
	from := newRig(t, 4)
	p, written := from.beforeTheDump(false)
	g := from.copyTo(own.url)
	g.Exec(t, `CREATE ROLE somebody; REVOKE ALL ON FUNCTION pg_control_system() FROM PUBLIC`)
	for _, f := range []string{"outbox_rebase(text)", "outbox_foreign_signs(text)"} {
		g.Exec(t, sqlOf(g.DB, `ALTER FUNCTION `+f+` OWNER TO somebody`))
	}
	g.Exec(t, sqlOf(g.DB, `GRANT USAGE ON SCHEMA `+pgx.Identifier{g.Schema}.Sanitize()+` TO somebody;
		GRANT ALL ON ALL TABLES IN SCHEMA `+pgx.Identifier{g.Schema}.Sanitize()+` TO somebody;
		GRANT ALL ON ALL SEQUENCES IN SCHEMA `+pgx.Identifier{g.Schema}.Sanitize()+` TO somebody`))
	g.openAsRelay()
	s := g.joinOver()
	if r := g.rebased(); r == nil || len(r.Found) != 2 {
		t.Errorf("rebase %+v, want two signs", r)
	}
	p.add(g.collect(s, 0, 1, 2, 3)...)
	p.check(t, written)
}

// A copy within the same server needs no rebase: the numbers are of this server. Its relays start from its own cursors.
func TestACopyOnTheSameServerIsOfAnotherLineage(t *testing.T) {
	t.Parallel()
	from := newRig(t, 4)
	p, written := from.beforeTheDump(true)
	name := from.Schema + "_copy"
	from.Exec(t, `CREATE DATABASE `+name)
	t.Cleanup(func() {
		if _, err := from.Pool.Exec(context.Background(), `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	url := pgtest.Connect(t, from.URL, nil).Config().ConnConfig
	g := from.copyTo(fmt.Sprintf("postgres://%s:%s@%s:%d/%s?sslmode=disable", url.User, url.Password, url.Host, url.Port, name))
	lineage := g.lineage()
	g.openAsRelay()
	p.add(g.collect(g.joinOver(), 0, 1, 2, 3)...)
	p.check(t, written)
	if g.rebased() != nil || g.lineage() != lineage+1 || p.again() != 0 {
		t.Errorf("lineage %d after %d, rebase %+v, %d again", g.lineage(), lineage, g.rebased(), p.again())
	}
}

// A rebase waits for transactions that write, and lets others write after two seconds: nothing is published meanwhile.
func TestARebaseWaitsForWriters(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	g.write("a", "1", "2")
	s := g.join()
	g.drain(s)
	g.expire(s)
	x := g.open()
	x.write("a", "3")
	g.Exec(t, sqlOf(g.DB, `UPDATE outbox_meta SET value = 'another' WHERE name = 'system_identifier'`))
	began := time.Now()
	_, err := g.store.Join(t.Context(), store.Relay{ID: outbox.NewID(), Name: "r", Lease: time.Hour, Heartbeat: time.Minute}, store.Sink{Name: "orders"})
	if !errors.Is(err, store.ErrLineageChanged) || time.Since(began) > 8*time.Second {
		t.Errorf("joined with %v after %v, want ErrLineageChanged", err, time.Since(began))
	}
	if g.rebased() != nil {
		t.Error("it was rebased all the same")
	}
	x.commit()
	wantTexts(t, "then", g.drain(g.joinOver()), []string{"3"})
	if g.rebased() == nil {
		t.Error("it was not rebased")
	}
}

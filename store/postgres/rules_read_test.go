package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The rules of the read: each test here is named after one, and fails without it.

// pages makes a relay's pages small.
func pages(of int) func(*store.Relay) { return func(r *store.Relay) { r.Page = of } }

// keyIn is a key that lies in a partition.
func keyIn(part, partitions int) string { return keysIn(part, partitions, 1)[0] }

func keysIn(part, partitions, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("k", i); outbox.PartitionOf(key, outbox.ID{}, partitions) == part {
			keys = append(keys, key)
		}
	}
	return keys
}

// readOf reads a page whose fresh messages are of these partitions only.
func (g *rig) readOf(s *Session, partitions ...int) store.Page {
	g.t.Helper()
	p, err := s.Read(g.t.Context(), store.Room{Partitions: partitions, Messages: 1000, Bytes: 1 << 30})
	if err != nil {
		g.t.Fatal(err)
	}
	return p
}

// collect reads and settles until nothing more comes: as drain, but it comes to an end when the reads do not.
func (g *rig) collect(s *Session, partitions ...int) (all []string) {
	g.t.Helper()
	for range 500 {
		p := g.readOf(s, partitions...)
		g.settle(s, done(p))
		all = append(all, payloads(p)...)
		if !p.More {
			return all
		}
	}
	g.t.Fatalf("500 reads, and still there is more; %d messages came", len(all))
	return nil
}

func wantTexts(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: read %v, want %v", what, got, want)
	}
}

// numbered returns prefix1, prefix2, ...
func numbered(prefix string, n int) (texts []string) {
	for i := range n {
		texts = append(texts, fmt.Sprint(prefix, i+1))
	}
	return texts
}

// buffers counts the pages of the database that a statement touches by the worse of its plans.
func (g *rig) buffers(q question) (most int) {
	g.t.Helper()
	for _, plan := range g.plans(q) {
		most = max(most, plan.Hit+plan.Read)
	}
	return most
}

// plans runs a statement as the session does, by a plan for its arguments and by one for any, and undoes what it did.
func (g *rig) plans(q question) (plans []node) {
	g.t.Helper()
	ctx := g.t.Context()
	conn, err := pgx.Connect(ctx, g.URL)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	prepared, err := conn.Prepare(ctx, "asked", q.sql)
	if err != nil {
		g.t.Fatal(err)
	}
	literals := make([]string, len(q.args))
	for i, arg := range q.args {
		text, err := conn.TypeMap().Encode(prepared.ParamOIDs[i], pgx.TextFormatCode, arg, []byte{})
		if err != nil {
			g.t.Fatal(err)
		}
		if literals[i] = "NULL"; text != nil {
			literals[i] = "'" + strings.ReplaceAll(string(text), "'", "''") + "'"
		}
	}
	undone := errors.New("done, and undone")
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		var text []byte
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, settings); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `SELECT set_config('onward.retains', 'true', true)`); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "SET LOCAL plan_cache_mode = "+mode); err != nil {
				return err
			}
			call := "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE asked(" + strings.Join(literals, ", ") + ")"
			if err := tx.QueryRow(ctx, call, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
				return err
			}
			return undone
		})
		if !errors.Is(err, undone) {
			g.t.Fatal(err)
		}
		var explained []struct{ Plan node }
		if err := json.Unmarshal(text, &explained); err != nil {
			g.t.Fatal(err)
		}
		plans = append(plans, explained[0].Plan)
	}
	return plans
}

// probe lets every statement that asks for the incarnation's token fail unless its transaction is READ COMMITTED.
func (g *rig) probe() {
	g.t.Helper()
	schema := pgx.Identifier{g.Schema}.Sanitize()
	g.Exec(g.t, `ALTER TABLE `+g.Table("incarnation")+` RENAME TO hidden`)
	g.Exec(g.t, `CREATE FUNCTION `+schema+`.only_read_committed() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
		IF current_setting('transaction_isolation') <> 'read committed' THEN
			RAISE 'the isolation level is %', current_setting('transaction_isolation');
		END IF;
		RETURN true; END $$`)
	g.Exec(g.t, `CREATE VIEW `+g.Table("incarnation")+` AS SELECT * FROM `+schema+`.hidden WHERE `+schema+`.only_read_committed()`)
}

// Every statement runs READ COMMITTED, whatever the role, the database or the connection sets as default.
func TestStatementsAreReadCommittedUnderAnyDefault(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			db := newOutbox(t, 4)
			pool := pgtest.Connect(t, db.URL, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
			})
			g := &rig{DB: db, store: openStore(t, db, pool), t: t}
			s := g.enter(func(r *store.Relay) { r.Heartbeat = time.Nanosecond })
			g.probe()
			g.renew(s)
			g.write("a", "1", "2")
			wantTexts(t, "at first", g.collect(s, 0, 1, 2, 3), []string{"1", "2"})

			// A settle that waits for a row goes on with the row as it is then; under the defaults it would fail.
			g.write("a", "3")
			p := g.read(s)
			x := g.open()
			x.exec(`UPDATE ` + g.Table("cursors") + ` SET published = published`)
			settled := make(chan error, 1)
			go func() {
				_, err := s.Settle(context.WithoutCancel(t.Context()), done(p))
				settled <- err
			}()
			pgtest.Eventually(t, "the settle waits", func() bool {
				return pgtest.One[bool](t, db.Pool, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock')`, s.member.application)
			})
			x.commit()
			if err := <-settled; err != nil {
				t.Fatal(err)
			}

			g.Exec(t, `ALTER TABLE `+g.Table("messages")+` RENAME TO elsewhere`)
			if _, err := s.Read(t.Context(), room(s, 10)); !errors.Is(err, store.ErrReload) {
				t.Fatalf("a read without a table: %v", err)
			}
			g.Exec(t, `ALTER TABLE `+pgx.Identifier{g.Schema, "elsewhere"}.Sanitize()+` RENAME TO `+pgx.Identifier{g.Prefix + "messages"}.Sanitize())
			g.renew(s)
			g.write("a", "4")
			wantTexts(t, "after a statement failed", g.collect(s, 0, 1, 2, 3), []string{"4"})
		})
	}
}

// A policy that hides rows from the relay makes its reads fail: it passes no row silently.
func TestAPolicyThatHidesRowsFailsTheRead(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 4)
	g := &rig{DB: db, store: openStore(t, db, db.As(t, "onward_relay")), t: t}
	s := g.join()
	for _, scope := range []string{"mine", "theirs"} {
		g.Exec(t, `INSERT INTO `+g.Table("messages")+` (topic, type, partition_key, scope, payload) VALUES ('orders', 'OrderPaid', 'a', $1::text, convert_to($1, 'UTF8'))`, scope)
	}
	g.Exec(t, `CREATE POLICY mine ON `+g.Table("messages")+` FOR SELECT TO onward_relay USING (scope = 'mine')`)
	g.Exec(t, `ALTER TABLE `+g.Table("messages")+` ENABLE ROW LEVEL SECURITY`)
	p, err := s.Read(t.Context(), room(s, 10))
	if err == nil || !strings.Contains(err.Error(), "row-level security") || len(p.Parts) > 0 {
		t.Fatalf("read %v, %v; want an error that names row-level security", payloads(p), err)
	}
	g.Exec(t, `ALTER TABLE `+g.Table("messages")+` DISABLE ROW LEVEL SECURITY`)
	g.renew(s)
	wantTexts(t, "without the policy", g.collect(s, 0, 1, 2, 3), []string{"mine", "theirs"})
}

// The rows of a large open transaction cost no poll anything: L has jumped over them. They come when they are there.
func TestOpenRowsAreNotScannedByEachPoll(t *testing.T) {
	t.Parallel()
	open := sizeOf(t, "ONWARD_TEST_OPEN_ROWS", 100_000)
	for name, polled := range map[string][]int{"read_window": {0, 1, 2, 3}, "read_shares": {1, 2, 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, tr := newRig(t, 4).traced()
			s := g.join()
			tr.know(s)
			for part := range 4 {
				g.write(keyIn(part, 4), "before")
			}
			idle := func() (least int) {
				t.Helper()
				for range 3 { // transactions of other tests that end meanwhile cost a poll something
					for range 3 {
						g.collect(s, polled...)
					}
					asked, _ := tr.take()
					last := asked[len(asked)-2] // and then the settle
					if last.name != name {
						t.Fatalf("polled by %s, want %s", last.name, name)
					}
					if n := g.buffers(last); least == 0 || n < least {
						least = n
					}
				}
				return least
			}
			before := idle()
			small, large := g.open(), g.open()
			small.write(keyIn(1, 4), "late")
			large.exec(`INSERT INTO `+g.Table("messages")+` (topic, type, partition_key, payload) SELECT 'orders', 'OrderPaid', 'key-' || i % 100, '' FROM generate_series(1, $1::int) i`, open)
			g.write(keyIn(1, 4), "after")
			wantTexts(t, "meanwhile", g.collect(s, polled...), []string{"after"})
			after := idle()
			t.Logf("a poll touches %d buffers while %d rows are open, %d when there are none", after, open, before)
			if after >= 3*before {
				t.Errorf("a poll touches %d buffers while %d rows are open, %d when there are none", after, open, before)
			}
			large.exec("ROLLBACK")
			small.commit()
			wantTexts(t, "after the commit", g.collect(s, polled...), []string{"late"})
		})
	}
}

// A page has no more payload bytes than the relay says, however much room there is, but for a row that is larger alone.
func TestAPageIsBoundedByItsBytes(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join(func(r *store.Relay) { r.PageBytes = 1000 })
	for range 2 { // by shares, then by windows
		sizes := []int{400, 400, 400, 3000, 400, 600, 1}
		for _, size := range sizes {
			g.write(keyIn(1, 4), strings.Repeat("x", size))
		}
		var got [][]int
		for range 20 {
			p := g.read(s)
			var page []int
			for _, text := range payloads(p) {
				page = append(page, len(text))
			}
			if len(page) > 0 {
				got = append(got, page)
			}
			if !p.More {
				break
			}
		}
		if fmt.Sprint(got) != "[[400 400] [400] [3000] [400 600] [1]]" {
			t.Errorf("pages of %v bytes", got)
		}
		g.drain(s)
	}
}

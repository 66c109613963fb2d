package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// line is a key's parked rows and dead letters in the sink s, all of partition 3 of an outbox of 64.
type line struct {
	db *pgtest.DB
}

func newLine(t *testing.T) line {
	db := newOutbox(t, 64)
	db.Exec(t, sqlOf(db, `INSERT INTO outbox_sinks (name) VALUES ('s')`))
	db.Exec(t, sqlOf(db, `INSERT INTO outbox_partitions (sink, partition_id, snapshot, seq)
		SELECT 's', p, pg_current_snapshot(), 0 FROM generate_series(0, 63) p`))
	return line{db: db}
}

func idOf(seq int) string { return fmt.Sprintf("00000000-0000-7000-8000-%012d", seq) }

const copied = `partition_id, partition_key, place, seq, txid, id, topic, type, payload, content_type, headers, scope,
	correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at`

func copiedValues(seq int, key string) string {
	return fmt.Sprintf(`3, '%s', %d, %d, '7', '%s', 'orders', 'OrderPaid', 'p%d', 'text/plain', '{"a": "b"}', 'eu', 'c', 'd', 'e', 'f', 'g', 9, '2020-01-01'`,
		key, seq, seq, idOf(seq), seq)
}

func (l line) park(t testing.TB, seq int, key, reason string, due bool) {
	t.Helper()
	dueAt := "NULL"
	if due {
		dueAt = "clock_timestamp() + '1h'"
	}
	l.db.Exec(t, sqlOf(l.db, `INSERT INTO outbox_parked (sink, `+copied+`, reason, attempts, due_at) VALUES ('s', `+copiedValues(seq, key)+`, '`+reason+`', 1, `+dueAt+`)`))
}

func (l line) die(t testing.TB, seq int, key string, blocks bool) {
	t.Helper()
	l.db.Exec(t, sqlOf(l.db, `INSERT INTO outbox_dead (sink, `+copied+`, blocks, code, error, attempts, first_failure, last_failure, relay)
		VALUES ('s', `+copiedValues(seq, key)+fmt.Sprintf(`, %v, 'onward/rejected', 'no', 10, '2020-01-02', '2020-01-03', 'r')`, blocks)))
}

// shape is the line in order: each row's seq, with ! where it has due_at and is due, + where it has due_at ahead.
func (l line) shape(t testing.TB, key string) string {
	t.Helper()
	return strings.Join(pgtest.All[string](t, l.db.Pool, sqlOf(l.db, `SELECT seq || CASE WHEN due_at <= clock_timestamp() THEN '!' WHEN due_at > clock_timestamp() THEN '+' ELSE '' END
		FROM outbox_parked WHERE sink = 's' AND partition_key = $1 ORDER BY place, seq`), key), " ")
}

func (l line) promote(t testing.TB, pool *pgxpool.Pool, keys ...string) {
	t.Helper()
	partitions := make([]int32, len(keys))
	for i := range partitions {
		partitions[i] = 3
	}
	if _, err := pool.Exec(t.Context(), sqlOf(l.db, `SELECT outbox_promote('s', $1, $2)`), partitions, keys); err != nil {
		t.Fatal(err)
	}
}

func sqlState(err error) string {
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
		return pg.Code
	}
	return fmt.Sprint(err)
}

func TestPromoteMakesTheFirstOfALineItsHead(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	relay := l.db.As(t, "onward_relay")
	for seq := 10; seq < 13; seq++ {
		l.park(t, seq, "none has due_at", "behind", false)
	}
	l.park(t, 20, "a late row came before the head", "behind", false)
	l.park(t, 21, "a late row came before the head", "retry", true)
	l.park(t, 30, "the head waits for its retry", "retry", true)
	l.park(t, 31, "the head waits for its retry", "behind", false)
	l.park(t, 40, "scheduled rows stand aside", "scheduled", true)
	l.park(t, 41, "scheduled rows stand aside", "behind", false)
	l.die(t, 50, "dead before it", true)
	l.park(t, 51, "dead before it", "retry", true)
	l.park(t, 52, "dead before it", "scheduled", true)
	l.die(t, 60, "dead, and skipped", false)
	l.park(t, 61, "dead, and skipped", "behind", false)
	l.park(t, 70, "", "retry", true)
	l.park(t, 71, "", "retry", true)

	want := map[string]string{
		"none has due_at": "10! 11 12", "a late row came before the head": "20! 21", "the head waits for its retry": "30+ 31",
		"scheduled rows stand aside": "40+ 41!", "dead before it": "51 52+", "dead, and skipped": "61!", "": "70+ 71+",
	}
	var keys []string
	for key := range want {
		keys = append(keys, key, key)
	}
	l.promote(t, relay, keys...)
	for key, shape := range want {
		if got := l.shape(t, key); got != shape {
			t.Errorf("%q: %s, want %s", key, got, shape)
		}
	}
}

func TestRequeueMakesADeadLetterTheHeadAgain(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.die(t, 10, "k", true)
	l.park(t, 11, "k", "behind", false)
	l.park(t, 5, "k", "behind", false)
	admin := l.db.As(t, "onward_admin")

	if later := pgtest.One[int64](t, admin, sqlOf(l.db, `SELECT outbox_requeue('s', $1)`), idOf(10)); later != 0 {
		t.Errorf("later = %d", later)
	}
	if got := l.shape(t, "k"); got != "5! 10 11" { // a late row stands before it
		t.Errorf("line: %s", got)
	}
	got := pgtest.One[string](t, l.db.Pool, sqlOf(l.db, `SELECT regexp_replace((to_jsonb(k) - 'due_at' - 'parked_at')::text, '[+]\d\d:\d\d', '', 'g') FROM outbox_parked k WHERE seq = 10`))
	want := `{"id": "00000000-0000-7000-8000-000000000010", "seq": 10, "sink": "s", "txid": "7", "type": "OrderPaid", "pause": null, "place": 10, "scope": "eu", "topic": "orders", ` +
		`"reason": "retry", "headers": {"a": "b"}, "key_seq": 9, "payload": "\\x703130", "attempts": 10, "event_id": "g", "last_code": "onward/rejected", "created_at": "2020-01-01T00:00:00", ` +
		`"last_error": "no", "aggregate_id": "f", "available_at": null, "causation_id": "d", "content_type": "text/plain", "last_failure": "2020-01-03T00:00:00", "partition_id": 3, ` +
		`"first_failure": "2020-01-02T00:00:00", "partition_key": "k", "aggregate_type": "e", "correlation_id": "c", "attempts_before": 10}`
	if got != want {
		t.Errorf("row:  %s\nwant: %s", got, want)
	}
	if n := pgtest.One[int](t, l.db.Pool, sqlOf(l.db, `SELECT count(*) FROM outbox_dead`)); n != 0 {
		t.Errorf("%d dead letters are left", n)
	}
	audit := pgtest.One[string](t, l.db.Pool, sqlOf(l.db, `SELECT concat_ws(' ', actor, action, sink, message_id, detail) FROM outbox_audit`))
	if want := `onward_admin requeue s ` + idOf(10) + ` {"code": "onward/rejected", "published_later": 0}`; audit != want {
		t.Errorf("audit: %s\nwant:  %s", audit, want)
	}
}

func TestRequeueOfAMessageWithoutKeyIsDueAtOnce(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.die(t, 10, "", false)
	l.park(t, 9, "", "retry", true)
	pgtest.One[int64](t, l.db.As(t, "onward_admin"), sqlOf(l.db, `SELECT outbox_requeue('s', $1, actor => 'ann')`), idOf(10))
	if got := l.shape(t, ""); got != "9+ 10!" {
		t.Errorf("rows: %s", got)
	}
	if got := pgtest.One[string](t, l.db.Pool, sqlOf(l.db, `SELECT actor FROM outbox_audit`)); got != "ann" {
		t.Errorf("actor: %s", got)
	}
}

// TestRequeueCountsWhatWasPublishedLater has, of the key k behind a skipped dead letter of place 100, messages in every
// state that the cursor can tell.
func TestRequeueCountsWhatWasPublishedLater(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprintf("cursor of its own %v", own), func(t *testing.T) {
			t.Parallel()
			l := newLine(t)
			db := l.db
			db.Exec(t, sqlOf(db, `SELECT setval('outbox_messages_seq_seq', 90)`))
			insert := func(key string) (seq int) {
				return pgtest.One[int](t, db.Pool, sqlOf(db, `INSERT INTO outbox_messages (topic, type, partition_key, payload) VALUES ('t', 't', $1, '') RETURNING seq`), key)
			}
			insert("a") // 91: before it
			for range 9 {
				insert("b")
			}
			late, err := db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := late.Exec(t.Context(), sqlOf(db, `INSERT INTO outbox_messages (topic, type, partition_key, payload) VALUES ('t', 't', 'a', '')`)); err != nil { // 101
				t.Fatal(err)
			}
			for range 5 { // 102 to 106: two published, one parked, one dead, one discarded
				insert("a")
			}
			insert("b") // 107: another key of the cursor's range, whatever its partition
			cursor := pgtest.One[string](t, db.Pool, `SELECT pg_current_snapshot()::text`)
			if err := late.Commit(t.Context()); err != nil { // committed after the cursor's snapshot: not published
				t.Fatal(err)
			}
			insert("a") // 108: not passed
			db.Exec(t, sqlOf(db, `UPDATE outbox_partitions SET snapshot = $1, seq = 107`), cursor)
			if !own {
				db.Exec(t, sqlOf(db, `INSERT INTO outbox_relays (id, name, sinks, lease, heartbeat_at, leased_until) VALUES ('00000000-0000-7000-8000-0000000000aa', 'r', '{s}', '15s', now(), now())`))
				db.Exec(t, sqlOf(db, `UPDATE outbox_partitions SET relay = '00000000-0000-7000-8000-0000000000aa', seq = 0`))
				db.Exec(t, sqlOf(db, `INSERT INTO outbox_cursors SELECT 's', '00000000-0000-7000-8000-0000000000aa', 7, $1, NULL, NULL, array_agg(p), array_agg(107), 0, now() FROM generate_series(0, 63) p`), cursor)
			}
			copyTo := func(table, extra, values string, seq int) {
				db.Exec(t, sqlOf(db, fmt.Sprintf(`INSERT INTO outbox_%s (sink, place, `+strings.Replace(copied, "place, ", "", 1)+extra+`)
					SELECT 's', seq, `+strings.Replace(copied, "place, ", "", 1)+values+` FROM outbox_messages WHERE seq = %d`, table, seq)))
			}
			copyTo("parked", ", reason, due_at", ", 'retry', now()", 104)
			deadExtra := ", blocks, code, error, attempts, first_failure, last_failure, relay"
			copyTo("dead", deadExtra, ", false, 'c', 'e', 1, now(), now(), 'r'", 105)
			db.Exec(t, sqlOf(db, `INSERT INTO outbox_audit (actor, action, sink, message_id) SELECT 'x', 'discard', 's', id FROM outbox_messages WHERE seq = 106`))
			copyTo("dead", deadExtra, ", false, 'c', 'e', 1, now(), now(), 'r'", 91)
			db.Exec(t, sqlOf(db, `UPDATE outbox_dead SET place = 100, seq = 100, id = $1 WHERE seq = 91`), idOf(100))

			admin := db.As(t, "onward_admin")
			_, err = admin.Exec(t.Context(), sqlOf(db, `SELECT outbox_requeue('s', $1)`), idOf(100))
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != "ON001" || pg.Detail != "2" || !strings.Contains(pg.Message, "at least 2 later message(s)") {
				t.Fatalf("requeue: %v, want a refusal that counts 2", err)
			}
			if n := pgtest.One[int](t, db.Pool, sqlOf(db, `SELECT count(*) FROM outbox_dead WHERE seq = 100`)); n != 1 {
				t.Fatal("the refusal removed the dead letter")
			}
			if n := pgtest.One[int64](t, admin, sqlOf(db, `SELECT outbox_requeue('s', $1, true)`), idOf(100)); n != 2 {
				t.Errorf("requeue with accept_reorder returned %d, want 2", n)
			}
			if got := l.shape(t, "a"); got != "100! 104" {
				t.Errorf("line: %s: want one head", got)
			}
		})
	}
}

func TestDiscardRemovesAndPromotes(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.die(t, 10, "k", true)
	l.park(t, 11, "k", "behind", false)
	l.park(t, 12, "k", "behind", false)
	l.park(t, 13, "k", "behind", false)
	admin := l.db.As(t, "onward_admin")
	discard := func(seq int) string {
		return pgtest.One[string](t, admin, sqlOf(l.db, `SELECT outbox_discard('s', $1, 'bad data', 'ann')`), idOf(seq))
	}
	for _, step := range []struct {
		seq         int
		was, result string
	}{{12, "parked", "11 13"}, {10, "dead", "11! 13"}, {11, "parked", "13!"}, {13, "parked", ""}} {
		if was := discard(step.seq); was != step.was {
			t.Errorf("discard %d: was %s, want %s", step.seq, was, step.was)
		}
		if got := l.shape(t, "k"); got != step.result {
			t.Errorf("after %d: %q, want %q", step.seq, got, step.result)
		}
	}
	audit := pgtest.All[string](t, l.db.Pool, sqlOf(l.db, `SELECT concat_ws(' ', actor, action, sink, message_id, reason, detail) FROM outbox_audit ORDER BY id`))
	want := `ann discard s ` + idOf(10) + ` bad data {"key": "k", "seq": 10, "was": "dead", "code": "onward/rejected", "type": "OrderPaid", "topic": "orders"}`
	if len(audit) != 4 || audit[1] != want {
		t.Errorf("audit: %q\nwant second: %s", audit, want)
	}
}

func TestActsAreRefused(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.die(t, 10, "k", true)
	l.park(t, 11, "k", "behind", false)
	written := pgtest.One[string](t, l.db.Pool, sqlOf(l.db, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('t', 't', '') RETURNING id`))
	admin := l.db.As(t, "onward_admin")
	for _, c := range []struct{ name, sql, state string }{
		{"requeue of a parked message", `SELECT outbox_requeue('s', '` + idOf(11) + `')`, "ON003"},
		{"requeue of a message in the log", `SELECT outbox_requeue('s', '` + written + `')`, "ON003"},
		{"requeue of nothing", `SELECT outbox_requeue('s', '` + idOf(99) + `')`, "ON002"},
		{"requeue in no sink", `SELECT outbox_requeue('other', '` + idOf(10) + `')`, "ON002"},
		{"discard of nothing", `SELECT outbox_discard('s', '` + idOf(99) + `', 'r')`, "ON002"},
		{"discard of a message in the log", `SELECT outbox_discard('s', '` + written + `', 'r')`, "ON003"},
		{"discard without reason", `SELECT outbox_discard('s', '` + idOf(10) + `', ' ')`, "ON004"},
		{"discard with a null reason", `SELECT outbox_discard('s', '` + idOf(10) + `', NULL)`, "ON004"},
		{"UPDATE by the admin", `UPDATE outbox_parked SET reason = 'retry'`, "42501"},
		{"DELETE by the admin", `DELETE FROM outbox_dead`, "42501"},
		{"promote by the admin", `SELECT outbox_promote('s', '{1}', '{k}')`, "42501"},
	} {
		if _, err := admin.Exec(t.Context(), sqlOf(l.db, c.sql)); sqlState(err) != c.state {
			t.Errorf("%s: %v, want %s", c.name, err, c.state)
		}
	}
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		err := pgx.BeginTxFunc(t.Context(), admin, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sqlOf(l.db, `SELECT outbox_discard('s', $1, 'r')`), idOf(10))
			return err
		})
		if sqlState(err) != "ON005" {
			t.Errorf("discard in %s: %v, want ON005", level, err)
		}
	}
	for _, role := range []string{"onward_viewer", "onward_producer", "onward_relay"} {
		if _, err := l.db.As(t, role).Exec(t.Context(), sqlOf(l.db, `SELECT outbox_discard('s', $1, 'r')`), idOf(10)); sqlState(err) != "42501" {
			t.Errorf("discard by %s: %v, want 42501", role, err)
		}
	}
	if n := pgtest.One[int](t, l.db.Pool, sqlOf(l.db, `SELECT count(*) FROM outbox_audit`)); n != 0 {
		t.Errorf("%d lines of audit for acts that were refused", n)
	}
}

// TestActsAndSettlementsSeeEachOther runs an act and what a settlement does to the same key in two transactions, with each
// statement of the one between two of the other. Whatever the order, exactly one row ends up as head.
func TestActsAndSettlementsSeeEachOther(t *testing.T) {
	t.Parallel()
	type side []string
	settle := func(statements ...string) side {
		return append(append(side{`SELECT outbox_lock_lines('s', '{3}')`}, statements...), `SELECT outbox_promote('s', '{3}', '{k}')`)
	}
	park := func(seq int, reason, due string) string {
		return `INSERT INTO outbox_parked (sink, ` + copied + `, reason, due_at) VALUES ('s', ` + copiedValues(seq, "k") + `, '` + reason + `', ` + due + `)`
	}
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, l line)
		act     side
		settle  side
		want    string
	}{
		{
			"discard of the head, parking behind it", func(t *testing.T, l line) { l.park(t, 10, "k", "retry", true) },
			side{`SELECT outbox_discard('s', '` + idOf(10) + `', 'r')`},
			settle(park(11, "behind", "NULL")), "11!",
		},
		{
			"discard of a blocking dead letter, parking behind it", func(t *testing.T, l line) { l.die(t, 10, "k", true) },
			side{`SELECT outbox_discard('s', '` + idOf(10) + `', 'r')`},
			settle(park(11, "behind", "NULL")), "11!",
		},
		{"discard of the next one, publishing of the head", func(t *testing.T, l line) {
			l.park(t, 10, "k", "retry", true)
			l.park(t, 11, "k", "behind", false)
			l.park(t, 12, "k", "behind", false)
		}, side{`SELECT outbox_discard('s', '` + idOf(11) + `', 'r')`}, settle(`DELETE FROM outbox_parked WHERE seq = 10`), "12!"},
		{
			"requeue of a skipped dead letter, parking for a retry", func(t *testing.T, l line) { l.die(t, 10, "k", false) },
			side{`SELECT outbox_requeue('s', '` + idOf(10) + `')`},
			settle(park(11, "retry", "clock_timestamp() + '1h'")), "10! 11",
		},
		{"requeue of a blocking dead letter, death of a late one", func(t *testing.T, l line) {
			l.die(t, 10, "k", true)
			l.park(t, 11, "k", "behind", false)
		}, side{`SELECT outbox_requeue('s', '` + idOf(10) + `')`}, settle(park(9, "behind", "NULL")), "9! 10 11"},
		{"two acts", func(t *testing.T, l line) {
			l.park(t, 10, "k", "retry", true)
			l.park(t, 11, "k", "behind", false)
			l.park(t, 12, "k", "behind", false)
		}, side{`SELECT outbox_discard('s', '` + idOf(10) + `', 'r')`}, side{`SELECT outbox_discard('s', '` + idOf(11) + `', 'r')`}, "12!"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, actFirst := range []bool{true, false} {
				l := newLine(t)
				c.prepare(t, l)
				first, second := c.settle, c.act
				if actFirst {
					first, second = c.act, c.settle
				}
				l.interleave(t, first, second)
				if got := l.shape(t, "k"); got != c.want {
					t.Errorf("act first %v: %s, want %s", actFirst, got, c.want)
				}
			}
		})
	}
}

// interleave runs first without its commit, lets second run into its lock, and then commits first.
func (l line) interleave(t *testing.T, first, second []string) {
	t.Helper()
	ctx := t.Context()
	a, err := l.db.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range first {
		if _, err := a.Exec(ctx, sqlOf(l.db, s)); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	pid, done := make(chan uint32, 1), make(chan error, 1)
	go func() {
		done <- pgx.BeginFunc(ctx, l.db.Pool, func(tx pgx.Tx) error {
			pid <- tx.Conn().PgConn().PID()
			for _, s := range second {
				if _, err := tx.Exec(ctx, sqlOf(l.db, s)); err != nil {
					return fmt.Errorf("%s: %w", s, err)
				}
			}
			return nil
		})
	}()
	waiting := <-pid
	pgtest.Eventually(t, "the second transaction waits", func() bool {
		return pgtest.One[bool](t, l.db.Pool, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)`, waiting)
	})
	if err := a.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestLockLinesIsBounded(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	err := pgx.BeginFunc(t.Context(), l.db.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), sqlOf(l.db, `SELECT outbox_lock_lines('s', ARRAY(SELECT generate_series(0, 16383)))`)); err != nil {
			return err
		}
		var held int
		err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`).Scan(&held)
		if held != 256 {
			t.Errorf("%d locks are held, want 256", held)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// now is the clock of all runs.
var now = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// result is what a run of the program left.
type ran struct {
	code     int
	out, err string
}

// console is what a run has around it, beside its arguments.
type console struct {
	environ  []string
	in       string
	asks     bool // somebody answers
	terminal bool // stdout and stderr are one
}

func (c console) run(t testing.TB, args ...string) ran {
	t.Helper()
	return c.runContext(t.Context(), args...)
}

func (c console) runContext(ctx context.Context, args ...string) ran {
	var out, err bytes.Buffer
	code := Run(ctx, args, Environment{
		In: strings.NewReader(c.in), Out: &out, Err: &err, Environ: c.environ, Now: func() time.Time { return now },
		AsksOnIn: c.asks, OutIsTerminal: c.terminal, ErrIsTerminal: c.terminal,
		Patience: time.Hour, // what a golden file holds must not depend on how fast the machine is
	})
	return ran{code, out.String(), err.String()}
}

// session writes a run as a terminal shows it: command, data, words, code.
func session(args []string, r ran) string {
	text := "$ onward " + strings.Join(args, " ") + "\n" + r.out
	if r.err != "" {
		text += "[stderr]\n" + r.err
	}
	if r.code != 0 {
		text += "[exit " + string(rune('0'+r.code)) + "]\n"
	}
	return text + "\n"
}

// sessions runs commands, one after the other, and writes them as a terminal shows them.
func (c console) sessions(t testing.TB, commands ...string) string {
	t.Helper()
	var text strings.Builder
	for _, command := range commands {
		args := strings.Fields(command)
		text.WriteString(session(args, c.run(t, args...)))
	}
	return text.String()
}

// database is an outbox of the test's own.
type database struct {
	console
	pool           *pgxpool.Pool
	schema, prefix string
}

// newDatabase makes a schema with an outbox of 4 partitions, or skips where there is no server.
func newDatabase(t testing.TB) *database {
	t.Helper()
	d := emptyDatabase(t)
	if r := d.run(t, "migrate", "up", "--partitions", "4"); r.code != 0 {
		t.Fatalf("migrate: %+v", r)
	}
	return d
}

// emptyDatabase makes a schema without tables.
func emptyDatabase(t testing.TB) *database {
	t.Helper()
	url := os.Getenv("ONWARD_TEST_POSTGRES_URL")
	if url == "" {
		t.Skip(`ONWARD_TEST_POSTGRES_URL is not set: start the server with: dev/services up postgres && eval "$(dev/services env)"`)
	}
	var b [6]byte
	_, _ = rand.Read(b[:])
	d := &database{schema: "test_cli_" + hex.EncodeToString(b[:]), prefix: os.Getenv("ONWARD_TEST_TABLE_PREFIX")}
	if d.prefix == "" {
		d.prefix = "outbox_"
	}
	d.environ = []string{"ONWARD_DATABASE__URL=" + url, "ONWARD_DATABASE__SCHEMA=" + d.schema, "ONWARD_DATABASE__TABLE_PREFIX=" + d.prefix}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	d.pool = pool
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), `DROP SCHEMA IF EXISTS `+pgx.Identifier{d.schema}.Sanitize()+` CASCADE`)
		if err != nil {
			t.Errorf("drop schema: %v", err)
		}
		pool.Close()
	})
	return d
}

var outboxName = regexp.MustCompile(`\boutbox_`)

// sql turns outbox_x into this outbox's object.
func (d *database) sql(text string) string {
	return outboxName.ReplaceAllString(text, d.schema+"."+d.prefix)
}

// exec runs SQL in which outbox_x is this outbox's object.
func (d *database) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := d.pool.Exec(t.Context(), d.sql(sql), args...); err != nil {
		t.Fatalf("%.100s: %v", sql, err)
	}
}

// one returns the only value of a query.
func one[T any](t testing.TB, d *database, sql string, args ...any) (value T) {
	t.Helper()
	if err := d.pool.QueryRow(t.Context(), d.sql(sql), args...).Scan(&value); err != nil {
		t.Fatalf("%.100s: %v", sql, err)
	}
	return value
}

// id is the id of the n-th message of the story.
func id(n int) string { return "0197b0c4-6f5e-7000-8000-00000000000" + string(rune('0'+n)) }

// story is an outbox with a bit of everything: seven messages, two of them parked, two dead, a relay that lives and one
// that does not.
func (d *database) story(t testing.TB) {
	t.Helper()
	d.exec(t, `INSERT INTO outbox_sinks (name, published, created_at, seen_at) VALUES ('orders', 1000, $1, $1)`, now.Add(-24*time.Hour))
	for n, m := range []struct{ key, typ, payload, contentType string }{
		{"order-1", "OrderPaid", `{"id": 1}`, "application/json"},
		{"order-2", "OrderPaid", `{"id": 2}`, "application/json"},
		{"order-2", "OrderShipped", `{"id": 2}`, "application/json"},
		{"order-3", "OrderPaid", "not\x00printable\xff", "application/octet-stream"},
		{"order-3", "OrderShipped", "", "application/json"},
		{"", "Audit", "\x1b[31mred\x1b[0m", "text/plain"},
		{"order-4", "OrderPaid", `{"id": 4}`, "application/json"},
	} {
		d.exec(t, `INSERT INTO outbox_messages (id, topic, partition_key, type, payload, content_type, headers, correlation_id, created_at)
			VALUES ($1, 'orders', $2, $3, $4, $5, '{"traceparent": "00-1"}', $6, $7)`,
			id(n+1), m.key, m.typ, []byte(m.payload), m.contentType, "conversation-"+m.key, now.Add(time.Duration(n-60)*time.Minute))
	}
	d.exec(t, `INSERT INTO outbox_partitions (sink, partition_id, snapshot, seq) SELECT 'orders', p, pg_current_snapshot(), 6 FROM generate_series(0, 3) p`)
	const copied = `partition_id, partition_key, seq, txid, id, topic, type, payload, content_type, headers, scope,
		correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at`
	d.exec(t, `INSERT INTO outbox_parked (sink, place, `+copied+`, reason, attempts, due_at, last_code, last_error)
		SELECT 'orders', seq, `+copied+`, 'retry', 2, $2, 'onward/rejected', 'no room' FROM outbox_messages WHERE id = $1`, id(2), now.Add(time.Minute))
	d.exec(t, `INSERT INTO outbox_parked (sink, place, `+copied+`, reason) SELECT 'orders', seq, `+copied+`, 'behind'
		FROM outbox_messages WHERE id IN ($1, $2)`, id(3), id(5))
	d.exec(t, `INSERT INTO outbox_dead (sink, place, `+copied+`, blocks, code, error, attempts, first_failure, last_failure, relay)
		SELECT 'orders', seq, `+copied+`, partition_key <> '', 'onward/rejected', E'bad \x1b[31mpayload', 3, $3, $4, 'relay-1'
		FROM outbox_messages WHERE id IN ($1, $2)`, id(4), id(6), now.Add(-50*time.Minute), now.Add(-40*time.Minute))
	d.exec(t, `INSERT INTO outbox_attempts (sink, id, attempt, at, relay, outcome, code, error, duration)
		SELECT 'orders', $1, n, $2::timestamptz + n * '1 min'::interval, 'relay-1', 'retry', 'onward/rejected', 'no, said the broker', '20ms'
		FROM generate_series(1, 3) n`, id(4), now.Add(-51*time.Minute))
	for i, name := range []string{"relay-1", "relay-2"} {
		until := []time.Time{time.Now().Add(time.Hour), now}[i]
		d.exec(t, `INSERT INTO outbox_relays (id, name, sinks, lease, host, pid, version, started_at, heartbeat_at, leased_until)
			VALUES ($1, $2, '{orders}', '15s', 'host-a', 42, 'v0.1.0', $3, $3, $4)`, id(i), name, now, until)
	}
	d.exec(t, `INSERT INTO outbox_cursors (sink, relay, no, snapshot, partitions, seqs, published, settled_at)
		VALUES ('orders', $1, 7, pg_current_snapshot(), '{0,1,2}', '{6,6,6}', 234, $2)`, id(0), now)
	d.exec(t, `UPDATE outbox_partitions SET relay = $1, epoch = 1 WHERE partition_id < 3`, id(0))
	d.exec(t, `UPDATE outbox_partitions SET freed_at = $1 WHERE partition_id = 3`, now)
}

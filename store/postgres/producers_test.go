package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// written is what the log has of a test's messages, in the order of seq: their types, and whether each has the transaction
// id that the test wrote in its scope.
func written(t testing.TB, db *pgtest.DB) (types []string, foreign int) {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), sqlOf(db, `SELECT type, txid::text <> scope FROM outbox_messages ORDER BY seq`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (none struct{}, err error) {
		var name string
		var wrong bool
		err = row.Scan(&name, &wrong)
		if types = append(types, name); wrong {
			foreign++
		}
		return none, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return types, foreign
}

// TestEveryWayToInsertIsACorrectProducer: as a producer, each way writes the messages A, B and C; they have their
// transaction's id and numbers in this order.
func TestEveryWayToInsertIsACorrectProducer(t *testing.T) {
	t.Parallel()
	const columns = `(topic, type, payload, scope)`
	xid := `pg_current_xact_id()::text`
	one := func(name string) string { return `('t', '` + name + `', 'p', ` + xid + `)` }
	for _, c := range []struct {
		name  string
		owner string // what the owner makes first
		sql   []string
	}{
		{"INSERT", "", []string{`INSERT INTO outbox_messages ` + columns + ` VALUES ` + one("A"), `INSERT INTO outbox_messages ` + columns + ` VALUES ` + one("B"), `INSERT INTO outbox_messages ` + columns + ` VALUES ` + one("C")}},
		{"rows of VALUES", "", []string{`INSERT INTO outbox_messages ` + columns + ` VALUES ` + one("A") + `, ` + one("B") + `, ` + one("C")}},
		{"SELECT ORDER BY", "", []string{`INSERT INTO outbox_messages ` + columns + ` SELECT 't', x, 'p', ` + xid + ` FROM unnest('{C,A,B}'::text[]) x ORDER BY x`}},
		{"ON CONFLICT DO NOTHING", "", []string{
			`INSERT INTO outbox_messages (id, topic, type, payload, scope) VALUES ('` + idOf(1) + `', 't', 'A', '', ` + xid + `), ('` + idOf(2) + `', 't', 'B', '', ` + xid + `)`,
			`INSERT INTO outbox_messages (id, topic, type, payload, scope) VALUES ('` + idOf(1) + `', 't', 'X', '', ` + xid + `), ('` + idOf(3) + `', 't', 'C', '', ` + xid + `) ON CONFLICT DO NOTHING`,
		}},
		{
			"view", `CREATE VIEW outbox_view AS SELECT topic, type, payload, scope FROM outbox_messages; GRANT INSERT ON outbox_view TO onward_producer`,
			[]string{`INSERT INTO outbox_view VALUES ` + one("A") + `, ` + one("B") + `, ` + one("C")},
		},
		{
			"rule", `CREATE TABLE outbox_orders (type text); GRANT INSERT ON outbox_orders TO onward_producer;
			CREATE RULE announce AS ON INSERT TO outbox_orders DO ALSO INSERT INTO outbox_messages ` + columns + ` VALUES ('t', NEW.type, 'p', ` + xid + `)`,
			[]string{`INSERT INTO outbox_orders VALUES ('A'), ('B'), ('C')`},
		},
		{"writable CTE", "", []string{`WITH a AS (INSERT INTO outbox_messages ` + columns + ` VALUES ` + one("A") + ` RETURNING seq) INSERT INTO outbox_messages ` + columns + ` SELECT 't', x, 'p', ` + xid + ` FROM a, unnest('{B,C}'::text[]) x`}},
		{"savepoints", "", []string{
			`INSERT INTO outbox_messages ` + columns + ` VALUES ` + one("A"), `SAVEPOINT a`, `INSERT INTO outbox_messages ` + columns + ` VALUES ` + one("X"), `ROLLBACK TO a`,
			`INSERT INTO outbox_messages ` + columns + ` VALUES ` + one("B"), `SAVEPOINT b`, `INSERT INTO outbox_messages ` + columns + ` VALUES ` + one("C"), `RELEASE b`,
		}},
		{"plpgsql with 70 subtransactions", "", []string{`DO $$ BEGIN
			FOR i IN 1..70 LOOP BEGIN INSERT INTO outbox_messages ` + columns + ` VALUES ('t', 'X', 'p', ` + xid + `); RAISE EXCEPTION 'no'; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP;
			FOR i IN 1..70 LOOP BEGIN IF i IN (1, 35, 70) THEN INSERT INTO outbox_messages ` + columns + ` VALUES ('t', CASE i WHEN 1 THEN 'A' WHEN 35 THEN 'B' ELSE 'C' END, 'p', ` + xid + `); END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP;
			END $$`}},
		{"outbox_send", "", []string{`SELECT outbox_send('t', x, 'p', scope => ` + xid + `) FROM unnest('{A,B,C}'::text[]) x`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newOutbox(t, 64)
			if c.owner != "" {
				db.Exec(t, sqlOf(db, c.owner))
			}
			err := pgx.BeginFunc(t.Context(), db.As(t, "onward_producer"), func(tx pgx.Tx) error {
				for _, s := range c.sql {
					if _, err := tx.Exec(t.Context(), sqlOf(db, s)); err != nil {
						return fmt.Errorf("%s: %w", s, err)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if types, foreign := written(t, db); fmt.Sprint(types) != "[A B C]" || foreign != 0 {
				t.Errorf("%v, %d of them with another transaction's id", types, foreign)
			}
		})
	}
}

func TestCopyIsACorrectProducer(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	err := pgx.BeginFunc(t.Context(), db.As(t, "onward_producer"), func(tx pgx.Tx) error {
		xid := oneIn[string](t, tx, `SELECT pg_current_xact_id()::text`)
		_, err := tx.CopyFrom(t.Context(), pgx.Identifier{db.Schema, db.Prefix + "messages"}, []string{"topic", "type", "payload", "scope"},
			pgx.CopyFromRows([][]any{{"t", "A", []byte("p"), xid}, {"t", "B", []byte("p"), xid}, {"t", "C", []byte("p"), xid}}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if types, foreign := written(t, db); fmt.Sprint(types) != "[A B C]" || foreign != 0 {
		t.Errorf("%v, %d of them with another transaction's id", types, foreign)
	}
}

func oneIn[T any](t testing.TB, tx pgx.Tx, sql string, args ...any) (value T) {
	t.Helper()
	if err := tx.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func TestAPreparedTransactionHasItsOwnID(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	conn, err := db.As(t, "onward_producer").Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, s := range []string{
		`BEGIN`, `INSERT INTO outbox_messages (topic, type, payload, scope) VALUES ('t', 'A', '', pg_current_xact_id()::text)`,
		`PREPARE TRANSACTION '` + db.Schema + `'`,
	} {
		if _, err := conn.Exec(t.Context(), sqlOf(db, s)); err != nil {
			t.Fatal(err)
		}
	}
	if types, _ := written(t, db); len(types) != 0 {
		t.Errorf("visible before it was committed: %v", types)
	}
	if _, err := conn.Exec(t.Context(), `COMMIT PREPARED '`+db.Schema+`'`); err != nil {
		t.Fatal(err)
	}
	if types, foreign := written(t, db); fmt.Sprint(types) != "[A]" || foreign != 0 {
		t.Errorf("%v, %d with another transaction's id", types, foreign)
	}
}

// TestForgedNumbersAreOverwritten: even the owner, by any means, gets the transaction's id and the next number.
func TestForgedNumbersAreOverwritten(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		for _, s := range []string{
			`INSERT INTO outbox_messages (seq, txid, topic, type, payload, scope) VALUES (-5, '1', 't', 'A', '', pg_current_xact_id()::text)`,
			`INSERT INTO outbox_messages (seq, txid, topic, type, payload, scope) OVERRIDING SYSTEM VALUE VALUES (9000, '9999999999', 't', 'B', '', pg_current_xact_id()::text)`,
		} {
			if _, err := tx.Exec(t.Context(), sqlOf(db, s)); err != nil {
				return err
			}
		}
		xid := oneIn[string](t, tx, `SELECT pg_current_xact_id()::text`)
		text := fmt.Sprintf("1\t77\tt\tC\t\\\\x\t%s\n1\t1\tt\tD\t\\\\x\t%s\n", xid, xid)
		_, err := tx.Conn().PgConn().CopyFrom(t.Context(), strings.NewReader(text), sqlOf(db, `COPY outbox_messages (txid, seq, topic, type, payload, scope) FROM STDIN`))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if types, foreign := written(t, db); fmt.Sprint(types) != "[A B C D]" || foreign != 0 {
		t.Errorf("%v, %d of them with another transaction's id", types, foreign)
	}
	if seqs := pgtest.All[int64](t, db.Pool, sqlOf(db, `SELECT seq FROM outbox_messages ORDER BY seq`)); fmt.Sprint(seqs) != "[1 2 3 4]" {
		t.Errorf("numbers %v, want 1 to 4", seqs)
	}
}

func TestWhatProducersMayNotDo(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	db.Exec(t, sqlOf(db, `INSERT INTO outbox_messages (id, topic, type, payload) VALUES ($1, 't', 't', '')`), idOf(1))
	producer := db.As(t, "onward_producer")
	const denied, refused = "42501", "0A000"
	for _, c := range []struct{ sql, producer, owner string }{
		{`UPDATE outbox_messages SET payload = 'x'`, denied, refused},
		{`UPDATE outbox_messages SET payload = 'x' WHERE false`, denied, refused},
		{`TRUNCATE outbox_messages`, denied, refused},
		{`INSERT INTO outbox_messages (id, topic, type, payload) VALUES ('` + idOf(1) + `', 't', 't', '') ON CONFLICT (id) DO UPDATE SET payload = 'x'`, denied, refused},
		{`DELETE FROM outbox_messages`, denied, ""},
		{`SELECT payload FROM outbox_messages`, denied, ""},
		{`SELECT id, partition_id, seq, txid FROM outbox_messages`, "", ""},
		{`INSERT INTO outbox_messages (seq, topic, type, payload) VALUES (1, 't', 't', '')`, denied, ""},
		{`INSERT INTO outbox_messages (txid, topic, type, payload) VALUES ('1', 't', 't', '')`, denied, ""},
		{`SELECT nextval('outbox_messages_seq_seq')`, denied, ""},
		{`SELECT * FROM outbox_parked`, denied, ""},
		{`SELECT * FROM outbox_dead`, denied, ""},
		{`INSERT INTO outbox_meta VALUES ('a', 'b')`, denied, ""},
		{`SELECT outbox_lock_lines('s', '{1}')`, denied, ""},
		{`SELECT * FROM outbox_written('{` + idOf(1) + `}')`, "", ""},
		{`INSERT INTO outbox_audit (actor, action, sink) VALUES ('a', 'b', 'c')`, denied, ""},
		{`UPDATE outbox_audit SET actor = 'x'`, denied, refused},
		{`DELETE FROM outbox_audit`, denied, refused},
		{`TRUNCATE outbox_audit`, denied, refused},
	} {
		for _, as := range []struct {
			pool *pgxpool.Pool
			who  string
			want string
		}{{producer, "producer", c.producer}, {db.Pool, "owner", c.owner}} {
			_, err := as.pool.Exec(t.Context(), sqlOf(db, c.sql))
			if got := sqlState(err); err == nil && as.want != "" || err != nil && got != as.want {
				t.Errorf("%s by the %s: %v, want %q", c.sql, as.who, err, as.want)
			}
		}
	}
}

// TestPsqlIsAProducer: the program, a plain INSERT, and the shipped grants of a producer.
func TestPsqlIsAProducer(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	said := psql(t, db, sqlOf(db, `SET ROLE onward_producer;
		INSERT INTO outbox_messages (topic, type, partition_key, payload) VALUES ('orders', 'OrderPaid', 'order-7', '{"total": 12}');
		INSERT INTO outbox_messages (topic, type, payload) VALUES ('orders', 'Noted', convert_to('back\slash ünï', 'UTF8')) RETURNING seq;
		SELECT outbox_send_text('orders', 'OrderShipped', '{"total": 12}', key => 'order-7');`))
	rows := rowsOf(t, db, "true")
	if len(rows) != 3 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, want := range []outbox.Message{
		{Type: "OrderPaid", Key: "order-7", Payload: []byte(`{"total": 12}`), ContentType: "application/octet-stream"},
		{Type: "Noted", Payload: []byte(`back\slash ünï`), ContentType: "application/octet-stream"},
		{Type: "OrderShipped", Key: "order-7", Payload: []byte(`{"total": 12}`), ContentType: "text/plain; charset=utf-8"},
	} {
		got := rows[i]
		if got.Topic != "orders" || got.Type != want.Type || got.Key != want.Key || string(got.Payload) != string(want.Payload) || got.ContentType != want.ContentType ||
			got.ID.IsZero() || got.Partition != outbox.PartitionOf(want.Key, got.ID, 64) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	receipt := outbox.Receipt{ID: rows[2].ID, Partition: rows[2].Partition, Seq: rows[2].Seq}
	if want := fmt.Sprintf("%d\n%s", rows[1].Seq, strings.TrimSuffix(receipt.String(), "0")); !strings.HasPrefix(said, want) {
		t.Errorf("psql printed %q, want %q", said, want)
	}
}

func TestDefaultsOfAPlainInsert(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	err := pgx.BeginFunc(t.Context(), db.As(t, "onward_producer"), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), sqlOf(db, `SELECT now(); INSERT INTO outbox_messages (topic, type, payload) VALUES ('t', 't', 'p')`))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got := pgtest.One[string](t, db.Pool, sqlOf(db, `SELECT concat_ws('|', partition_key, content_type, headers, scope, correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq,
		available_at IS NULL, created_at BETWEEN clock_timestamp() - interval '1 min' AND clock_timestamp()) FROM outbox_messages`))
	if want := "|application/octet-stream|{}|||||||0|t|t"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestUUID7InSQL(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	before := outbox.NewID()
	got := pgtest.All[string](t, db.As(t, "onward_producer"), sqlOf(db, `SELECT outbox_uuid7()::text FROM generate_series(1, 2000)`))
	after := outbox.NewID()
	form, seen := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`), map[string]bool{}
	clock := func(id string) string { return id[:18] } // milliseconds and their fraction
	for i, id := range got {
		if !form.MatchString(id) || seen[id] {
			t.Fatalf("%s is not a new UUIDv7", id)
		}
		seen[id] = true
		if i > 0 && clock(id) < clock(got[i-1]) {
			t.Fatalf("%s after %s", id, got[i-1])
		}
	}
	// The server's clock is this machine's in the tests; a minute for one that is not.
	if first, err := outbox.ParseID(got[0]); err != nil || ms(first)+60_000 < ms(before) || ms(first) > ms(after)+60_000 {
		t.Errorf("%s is not of this moment: %s to %s", got[0], before, after)
	}
}

func ms(id outbox.ID) (n int64) {
	for _, b := range id[:6] {
		n = n<<8 | int64(b)
	}
	return n
}

// TestPartitionsAgreeWithGo has keys of all kinds of characters, for several numbers of partitions.
func TestPartitionsAgreeWithGo(t *testing.T) {
	t.Parallel()
	letters := []rune("ab\\'\"%_ \u0080\u0085üß日本語🚀\u0301\u00a0\U0010ffff0x")
	for _, partitions := range []int{1, 64, 1024, 16384} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			t.Parallel()
			db := newOutbox(t, partitions)
			batch, w := &pgx.Batch{}, NewWriter(config(db))
			queue := func(key string) {
				m := outbox.Message{ID: outbox.NewID(), Topic: "t", Type: "t", Key: key}
				err := w.Queue(t.Context(), batch, m, func(r outbox.Receipt) {
					if want := outbox.PartitionOf(key, m.ID, partitions); r.Partition != want {
						t.Errorf("%q: partition %d, want %d", key, r.Partition, want)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, key := range []string{"", "", "a", `a\b`, "ünï", "日本", `\`, `\\`, `\x41`, `\101`, "\\\\x00"} {
				queue(key)
			}
			for range 300 {
				var key strings.Builder
				for range rand.IntN(20) {
					key.WriteRune(letters[rand.IntN(len(letters))])
				}
				queue(key.String())
			}
			if err := db.Pool.SendBatch(t.Context(), batch).Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestSendTakesEveryArgument(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	pool := db.As(t, "onward_producer")
	send := func(sql string, args ...any) outbox.Receipt {
		t.Helper()
		r, err := outbox.ParseReceipt(pgtest.One[string](t, pool, sqlOf(db, sql), args...))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	at := time.Date(2031, 1, 2, 3, 4, 5, 6000, time.UTC)
	full := send(`SELECT outbox_send('t', 'y', '\x00ff5c'::bytea, key => 'k\', headers => '{"a": "b"}', id => $1, content_type => 'c', scope => 's',
		correlation_id => 'co', causation_id => 'ca', aggregate_type => 'at', aggregate_id => 'ai', event_id => 'e', available_at => $2, serialize => true)`, idOf(1), at)
	got := rowsOf(t, db, "seq = $1", full.Seq)[0]
	id, _ := outbox.ParseID(idOf(1))
	compare(t, row{Message: got.Message, Partition: got.Partition, Seq: got.Seq, Tx: got.Tx, AvailableAt: got.AvailableAt}, outbox.Message{
		ID: id, Topic: "t", Type: "y", Payload: []byte{0, 0xff, '\\'}, Key: `k\`, Headers: map[string]string{"a": "b"}, ContentType: "c", Scope: "s",
		CorrelationID: "co", CausationID: "ca", AggregateType: "at", AggregateID: "ai", EventID: "e", AvailableAt: at,
	}, full)
	if got.KeySeq != 1 {
		t.Errorf("key_seq %d, want 1", got.KeySeq)
	}

	nulls := send(`SELECT outbox_send('t', 'y', '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)`)
	compare(t, rowsOf(t, db, "seq = $1", nulls.Seq)[0], outbox.Message{ID: nulls.ID, Topic: "t", Type: "y"}, nulls)

	text := `back\slash \x41 'quotes' ünï` + "\n"
	r := send(`SELECT outbox_send_text('t', 'y', $1, 'k')`, text)
	compare(t, rowsOf(t, db, "seq = $1", r.Seq)[0], outbox.Message{ID: r.ID, Topic: "t", Type: "y", Key: "k", ContentType: "text/plain; charset=utf-8", Payload: []byte(text)}, r)
	r = send(`SELECT outbox_send_text('t', 'y', '{}', content_type => 'application/json', id => $1)`, idOf(2))
	if got := rowsOf(t, db, "seq = $1", r.Seq)[0]; got.ContentType != "application/json" || r.ID.String() != idOf(2) {
		t.Errorf("%+v", got)
	}
}

func TestSendAndDuplicates(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	pool := db.As(t, "onward_producer")
	send := func(id int, options string) (string, error) {
		var receipt string
		err := pool.QueryRow(t.Context(), sqlOf(db, `SELECT outbox_send('t', 'y', '', key => 'k', id => $1`+options+`)`), idOf(id)).Scan(&receipt)
		return receipt, err
	}
	first, err := send(1, ", serialize => true")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := send(1, ", serialize => true"); sqlState(err) != "23505" || !strings.Contains(err.Error(), "messages_id") {
		t.Errorf("a duplicate: %v", err)
	}
	again, err := send(1, ", serialize => true, ignore_duplicate => true")
	if err != nil || again != first {
		t.Errorf("ignored: %q, %v, want %q", again, err, first)
	}
	if _, err := send(2, ", serialize => true, ignore_duplicate => true"); err != nil {
		t.Fatal(err)
	}
	if n := rowsOf(t, db, "id = $1", idOf(2))[0].KeySeq; n != 2 {
		t.Errorf("the second message has number %d, want 2: a duplicate is not counted", n)
	}
	// Without an id there is nothing to compare.
	if n := pgtest.One[int](t, pool, sqlOf(db, `SELECT count(*) FROM (SELECT outbox_send('t', 'y', '', ignore_duplicate => true) FROM generate_series(1, 3)) s`)); n != 3 {
		t.Errorf("%d", n)
	}
	if n := len(rowsOf(t, db, "true")); n != 5 {
		t.Errorf("%d messages, want 5", n)
	}
}

// TestSendIgnoresADuplicateThatIsBeingWritten: the first one's transaction is open when the second starts.
func TestSendIgnoresADuplicateThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	for _, otherKey := range []bool{false, true} {
		db := newOutbox(t, 64)
		send := func(ctx context.Context, tx pgx.Tx, key string) (receipt string, err error) {
			err = tx.QueryRow(ctx, sqlOf(db, `SELECT outbox_send('t', 'y', '', key => $1, id => $2, serialize => true, ignore_duplicate => true)`), key, idOf(1)).Scan(&receipt)
			return receipt, err
		}
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		first, err := send(t.Context(), tx, "k")
		if err != nil {
			t.Fatal(err)
		}
		key := map[bool]string{false: "k", true: "other"}[otherKey]
		pid, second := make(chan uint32, 1), make(chan string, 1)
		go func() {
			_ = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				pid <- tx.Conn().PgConn().PID()
				receipt, err := send(t.Context(), tx, key)
				if err != nil {
					t.Error(err)
				}
				second <- receipt
				return err
			})
		}()
		waiting := <-pid
		pgtest.Eventually(t, "the second one waits", func() bool {
			return pgtest.One[bool](t, db.Pool, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)`, waiting)
		})
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-second; got != first {
			t.Errorf("%q, want the first one's %q", got, first)
		}
		pgtest.Eventually(t, "the number is given back", func() bool {
			return pgtest.One[int](t, db.Pool, sqlOf(db, `SELECT coalesce(max(key_seq), -1) FROM outbox_keys WHERE partition_key = $1`), key) == map[bool]int{false: 1, true: 0}[otherKey]
		})
	}
}

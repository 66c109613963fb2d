package postgres

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// With a thousand transactions open every snapshot has a thousand ids: no statement of a relay touches much more than
// without them, and a settle writes the snapshot once. When they commit, their rows come once. On a server of its own:
// such snapshots slow down everybody.
func TestAThousandOpenTransactionsCostLittle(t *testing.T) {
	t.Parallel()
	const open, partitions, hot = 1000, 64, "hot"
	// What reads a snapshot for each partition reads it in some pieces; a take-over also writes it for each.
	large := map[string]int{"reload": 4 * partitions, "free": 12 * partitions}
	server := newServer(t)
	server.start(fmt.Sprint("max_prepared_transactions=", open), "autovacuum=off")
	g, tr := server.rig(partitions).traced()
	s := g.join(func(r *store.Relay) { r.Page = 64 })
	tr.know(s)
	g.insertMany(20_000)
	g.Exec(t, `ANALYZE`)
	measure := func() map[string]int {
		touched := map[string]int{}
		for name, q := range g.asked(tr, s, hot) {
			for _, plan := range g.plans(q) {
				touched[name] = max(touched[name], plan.Hit+plan.Read)
				plan.walk(func(n node) {
					if n.Type == "Seq Scan" && n.Loops > 0 && strings.HasSuffix(n.Relation, "messages") {
						t.Errorf("%s reads %s from its beginning", name, n.Relation)
					}
				})
			}
		}
		return touched
	}
	first := measure()
	g.prepareAll(open)
	for range 2 { // the cursor has the large snapshot now
		g.settle(s, done(g.readOf(s)))
	}
	touched := measure()
	t.Logf("buffers: %v without open transactions, %v with %d", first, touched, open)
	for _, name := range slices.Sorted(maps.Keys(touched)) {
		if touched[name] > first[name]+max(most(name), large[name]) {
			t.Errorf("%s touches %d buffers while %d transactions are open, %d when there are none", name, touched[name], open, first[name])
		}
	}
	if len(touched) != len(first) || len(touched) < 11 {
		t.Errorf("measured %d statements without and %d with open transactions", len(first), len(touched))
	}
	written := g.settleBytes(s)
	t.Logf("a settle writes %d bytes of log", written)
	if written < open || written > 10*open {
		t.Errorf("a settle writes %d bytes of log, want one snapshot of %d ids", written, open)
	}
	if sent := g.answerBytes(s.sql["reload"], s.sink, s.member.ID.String()); sent < open || sent > 20*open+200*partitions {
		t.Errorf("a reload is sent %d bytes, want one snapshot of %d ids and %d partitions", sent, open, partitions)
	}
	g.Exec(t, `DELETE FROM `+g.Table("parked"))
	g.Exec(t, `DELETE FROM `+g.Table("dead"))
	g.collect(s, held(s)...)
	for i := range open {
		g.Exec(t, fmt.Sprintf(`COMMIT PREPARED 'open-%d'`, i))
	}
	wantTexts(t, "when they have committed", sorted(g.collect(s, held(s)...)), sorted(numbered("open", open)))
}

// answerBytes is how much a statement answers.
func (g *rig) answerBytes(sql string, args ...any) (sent int) {
	g.t.Helper()
	rows, err := g.Pool.Query(g.t.Context(), sql, args...)
	if err != nil {
		g.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		for _, value := range rows.RawValues() {
			sent += len(value)
		}
	}
	if err := rows.Err(); err != nil {
		g.t.Fatal(err)
	}
	return sent
}

// prepareAll leaves n transactions open on no connection, each with a message.
func (g *rig) prepareAll(n int) {
	g.t.Helper()
	conn, err := g.Pool.Acquire(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Release()
	for i := range n {
		text := fmt.Sprintf(`BEGIN; INSERT INTO %s (topic, type, partition_key, payload) VALUES ('orders', 'OrderPaid', 'key-%[2]d', 'open%[3]d');
			PREPARE TRANSACTION 'open-%[2]d'`, g.Table("messages"), i, i+1)
		if _, err := conn.Exec(g.t.Context(), text, pgx.QueryExecModeSimpleProtocol); err != nil {
			g.t.Fatal(err)
		}
	}
}

// settleBytes is how much log a settle of a page writes, on a server where nobody else does.
func (g *rig) settleBytes(s *Session) (least int) {
	g.t.Helper()
	const at = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
	for range 5 { // the first time that a page changes, the log has all of it
		p := g.readOf(s, held(s)...)
		before := pgtest.One[int](g.t, g.Pool, at)
		g.settle(s, done(p))
		if n := pgtest.One[int](g.t, g.Pool, at) - before; least == 0 || n < least {
			least = n
		}
	}
	return least
}

// busyRows are messages of one key, as the trigger would leave them, without it: their ids ascend, as outbox_uuid7 draws them.
const busyRows = `INSERT INTO outbox_messages (txid, seq, id, topic, partition_key, type, payload)
	SELECT pg_current_xact_id(), n, ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'orders', '%s', 'T', 'x'
	FROM (SELECT nextval('outbox_messages_seq_seq') AS n FROM generate_series(1, %d)) g`

// publishBusy writes messages of one key, and reads and settles them as they come. It calls after each portion.
func (g *rig) publishBusy(s *Session, key string, n int, each func()) {
	g.t.Helper()
	came := 0
	for left := n; left > 0; left -= 20_000 {
		g.Exec(g.t, `BEGIN; SET LOCAL session_replication_role = replica;`+sqlOf(g.DB, fmt.Sprintf(busyRows, key, min(left, 20_000)))+`; COMMIT`)
		for {
			p, err := s.Read(g.t.Context(), room(s, 2048))
			if err != nil {
				g.t.Fatal(err)
			}
			g.settle(s, done(p))
			for _, part := range p.Parts {
				came += len(part.Records)
			}
			if !p.More {
				break
			}
		}
		each()
	}
	if came != n {
		g.t.Fatalf("%d of %d messages of the busy key came", came, n)
	}
}

// A relay that holds idle partitions and is loaded again reads little at first, whatever a busy one has published since
// anything came of them: itself, or another relay. Their snapshot moves all the same.
func TestARestartBesideABusyPartitionReadsLittle(t *testing.T) {
	t.Parallel()
	rows := sizeOf(t, "ONWARD_TEST_BUSY_ROWS", 100_000)
	const partitions = 64
	key := keyIn(partitions-1, partitions)
	for _, who := range []string{"itself", "another"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			g, tr := newRig(t, partitions).traced()
			s := g.join()
			for part := range partitions {
				g.write(keyIn(part, partitions), "idle")
			}
			g.drain(s)
			// restart publishes so many, and counts the buffers of the first read of the relay's successor.
			restart := func(n int) int {
				t.Helper()
				if who == "itself" {
					g.publishBusy(s, key, n, func() {})
				} else {
					if err := s.GiveBack(t.Context(), []int{partitions - 1}); err != nil {
						t.Fatal(err)
					}
					other := g.join()
					if got, idle := held(other), len(held(s)); len(got) != 1 || got[0] != partitions-1 || idle != partitions-1 {
						t.Fatalf("the other relay holds %v, this one %d", got, idle)
					}
					g.publishBusy(other, key, n, func() { g.pollAndAge(s) })
					if err := other.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				s = g.crash(s)
				if n := len(held(s)); n != partitions {
					t.Fatalf("the successor holds %d partitions", n)
				}
				tr.know(s)
				tr.take()
				p := g.read(s)
				asked, _ := tr.take()
				wantTexts(t, "at first", payloads(p), nil)
				if len(asked) != 1 || asked[0].name != "read_shares" {
					t.Fatalf("read by %v", namesOf(asked))
				}
				return g.buffers(asked[0])
			}
			few := restart(1000)
			many := restart(rows)
			t.Logf("the first read touches %d buffers after %d messages of one partition, %d after 1,000", many, rows, few)
			if many > few+2*partitions { // a level of the index more, for each
				t.Errorf("the first read touches %d buffers after %d messages of one partition, %d after 1,000", many, rows, few)
			}
			g.write(keyIn(3, partitions), "next")
			wantTexts(t, "then", g.drain(s), []string{"next"})
		})
	}
}

// pollAndAge is what an idle relay does in half a minute: it polls, and settles its snapshot though nothing moved.
func (g *rig) pollAndAge(s *Session) {
	g.t.Helper()
	for range 2 {
		wantTexts(g.t.(*testing.T), "an idle poll", payloads(g.read(s)), nil)
	}
	s.mu.Lock()
	s.settled = s.settled.Add(-cursorAge)
	s.mu.Unlock()
	g.renew(s)
}

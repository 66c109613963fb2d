package postgres

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// insertMany writes n messages of 1,000 keys in one transaction.
func (g *rig) insertMany(n int) {
	g.t.Helper()
	g.Exec(g.t, `BEGIN; SET LOCAL session_replication_role = replica;`+ // as the trigger would leave them, without its time
		sqlOf(g.DB, fmt.Sprintf(`INSERT INTO outbox_messages (txid, seq, topic, type, partition_key, payload)
		SELECT pg_current_xact_id(), nextval('outbox_messages_seq_seq'), 'orders', 'OrderPaid', 'key-' || i %% 1000, '\x00'
		FROM generate_series(1, %d) i`, n))+`; COMMIT`)
}

// asked are the statements of a round of a relay, by their names: reads of all kinds, a settle with every verdict, and
// what is asked of parked messages.
func (g *rig) asked(tr *trace, s *Session, hot string) map[string]question {
	g.t.Helper()
	tr.take()
	small := store.Room{Messages: 4, Bytes: 1 << 20, Partitions: held(s)}
	for range 2 {
		p, err := s.Read(g.t.Context(), small)
		if err != nil {
			g.t.Fatal(err)
		}
		m := done(p)
		for i, part := range p.Parts {
			r := part.Records[0]
			v := store.Verdict{
				Partition: part.Partition, Seq: r.Seq, ID: r.ID, Key: r.Key, Code: "test/code", Attempts: 1,
				To: store.Park, Reason: store.ReasonRetry, Due: time.Hour, Tried: &store.Attempt{No: 1, Outcome: "retry", Code: "test/code"},
			}
			if i%2 == 0 {
				v.To, v.Blocks = store.Dead, true
			}
			m.Verdicts = append(m.Verdicts, v)
		}
		g.settle(s, m)
	}
	none := small
	none.Messages = 0
	if _, err := s.Read(g.t.Context(), none); err != nil {
		g.t.Fatal(err)
	}
	late, _ := tr.take()
	g.settle(s, store.Settlement{})
	s.mu.Lock()
	s.quiet = false // it reads what is parked, and does not look first
	s.mu.Unlock()
	if _, err := s.Heads(g.t.Context(), held(s), 512); err != nil {
		g.t.Fatal(err)
	}
	if _, err := s.Followers(g.t.Context(), store.Key{Partition: outbox.PartitionOf(hot, outbox.ID{}, 64), Key: hot}, store.Place{}, small); err != nil {
		g.t.Fatal(err)
	}
	g.renew(s)
	if _, err := s.load(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
	more, _ := tr.take()
	all := map[string]question{"late rows alone": late[len(late)-1]}
	for _, q := range append(late[:len(late)-1], more...) {
		all[q.name] = q
	}
	for _, name := range []string{"settle", "settle_verdicts"} { // for the row that there is now, or nothing of it would run
		all[name].args[2] = s.no
	}
	free := g.store.text("free")
	all["free"] = question{name: "free", sql: free, args: []any{s.member.ID.String()}}
	return all
}

// The statements of a relay go along their indexes at a million messages that wait and 100,000 that are parked behind one
// key, with the statistics of a thousand rows, with none, and with good ones; by plans for their arguments and by generic
// ones. What they touch is as much as at a thousand, but for a page of the index here and there.
func TestPlansOfTheRelayAtAMillionMessages(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes a million rows")
	}
	const hot = "hot"
	hotIn := outbox.PartitionOf(hot, outbox.ID{}, 64)
	g, tr := newRig(t, 64).traced()
	tables := []string{"messages", "parked", "dead", "attempts"}
	for _, table := range tables {
		g.Exec(t, `ALTER TABLE `+g.Table(table)+` SET (autovacuum_enabled = off)`)
	}
	s := g.join(func(r *store.Relay) { r.Page = 64 })
	tr.know(s)
	g.insertMany(1000)
	park := func(from, to int) {
		g.Exec(t, `INSERT INTO `+g.Table("parked")+` (sink, place, `+copiedColumns+`, reason, due_at)
			SELECT 'orders', seq, $4, $3, `+strings.Replace(copiedColumns, "partition_id, partition_key,", "", 1)+`,
			       CASE WHEN seq = 1 THEN 'retry' ELSE 'behind' END, CASE WHEN seq = 1 THEN now() + interval '1 hour' END
			FROM `+g.Table("messages")+` WHERE seq BETWEEN $1 AND $2`, from, to, hot, hotIn)
	}
	park(1, 500)
	measure := func() (touched map[string]int) {
		touched = map[string]int{}
		for name, q := range g.asked(tr, s, hot) {
			for _, plan := range g.plans(q) {
				touched[name] = max(touched[name], plan.Hit+plan.Read)
				plan.walk(func(n node) {
					big := slices.ContainsFunc(tables, func(table string) bool { return strings.HasSuffix(n.Relation, table) })
					if n.Type == "Seq Scan" && big && n.Loops > 0 {
						t.Errorf("%s reads %s from its beginning", name, n.Relation)
					}
					if n.Type == "Sort" && n.Rows*n.Loops > 10_000 {
						t.Errorf("%s sorts %.0f rows", name, n.Rows*n.Loops)
					}
				})
			}
		}
		return touched
	}
	for _, table := range tables {
		g.Exec(t, `ANALYZE `+g.Table(table))
	}
	first := measure()
	t.Logf("1,000: %v", first)
	g.insertMany(1_000_000)
	park(1001, 101_000)
	for _, statistics := range []struct{ name, before string }{
		{"of 1,000 rows", ""},
		{"none", `DELETE FROM pg_statistic WHERE starelid = $1::regclass`},
		{"good", ""},
	} {
		for _, table := range tables {
			switch {
			case statistics.name == "good":
				g.Exec(t, `ANALYZE `+g.Table(table))
			case statistics.before != "":
				g.Exec(t, statistics.before, g.Table(table))
			}
		}
		touched := measure()
		t.Logf("statistics %s: %v", statistics.name, touched)
		for _, name := range slices.Sorted(maps.Keys(touched)) {
			if before, asked := first[name]; asked && touched[name] > before+most(name) { // a heartbeat comes when it is time
				t.Errorf("statistics %s: %s touches %d pages, at 1,000 messages %d", statistics.name, name, touched[name], before)
			}
		}
	}
	million := measure()["read_shares"]
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.Exec(t, `UPDATE `+g.Table("partitions")+` SET snapshot = pg_current_snapshot(), seq = 1000000`)
	s = g.join(func(r *store.Relay) { r.Page = 64 })
	tr.know(s)
	thousand := measure()["read_shares"]
	t.Logf("a poll of the same log: %d pages while 1,000 messages wait, %d while a million do", thousand, million)
	if million > thousand+10 {
		t.Errorf("a poll touches %d pages while a million messages wait, and %d while 1,000 do", million, thousand)
	}
	if want := []string{"followers", "free", "heads", "late rows alone", "lock_lines", "look", "promote", "read_shares", "reload", "settle", "settle_verdicts"}; !slices.Equal(
		slices.Sorted(maps.Keys(first)), want) {
		t.Errorf("measured %v, want %v", slices.Sorted(maps.Keys(first)), want)
	}
}

// most is how many pages more a statement may touch.
func most(name string) int {
	switch name {
	case "read_shares", "promote": // a level of an index more, for each row
		return 100
	case "late rows alone": // an index page for each transaction that was open: others use the server too
		return 30
	case "heads", "free", "look", "settle", "settle_verdicts": // some pages for each partition, whose rows are written again and again
		return 4 * 64
	}
	return 10
}

// A page of a late pass costs its own rows, however many there are.
func TestALatePageTouchesFewPages(t *testing.T) {
	t.Parallel()
	const page = 256
	rows := sizeOf(t, "ONWARD_TEST_LATE_ROWS", 50_000)
	g, tr := newRig(t, 16).traced()
	s := g.join(pages(page))
	tr.know(s)
	bulk := g.open()
	bulk.exec(`INSERT INTO `+g.Table("messages")+` (topic, type, partition_key, payload)
		SELECT 'orders', 'OrderPaid', 'key-' || i % 1000, '\x00' FROM generate_series(1, $1::int) i`, rows)
	g.write("a", "1")
	g.drain(s)
	bulk.commit()
	tr.take()
	measured, worst, came := 0, 0, 0
	for reads := 0; ; reads++ {
		p := g.read(s)
		g.settle(s, done(p))
		came += len(payloads(p))
		asked, _ := tr.take()
		for _, q := range asked {
			if q.name == "read_page" && reads%(rows/page/10) < 2 {
				measured++
				worst = max(worst, g.buffers(q))
			}
		}
		if !p.More {
			break
		}
	}
	t.Logf("a page of %d of %d rows touches %d buffers at most", page, rows, worst)
	if worst > 4*page {
		t.Errorf("a page of %d touches %d buffers, want at most %d", page, worst, 4*page)
	}
	if measured < 10 || came != rows {
		t.Errorf("%d pages of a late pass were measured, want 10 or more; %d of %d messages came", measured, came, rows)
	}
}

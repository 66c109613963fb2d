package postgres

import (
	"fmt"
	"testing"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The statements of relays, and the lists of people, go along their indexes at a million messages and 1,024 partitions, while
// a transaction of 200,000 is open: with the statistics of a thousand messages, with none and with good ones, by plans for
// their arguments and by generic ones. A poll touches what it touches at a thousand, within 10 pages.
func TestPlansAtAMillionMessages(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes a million rows")
	}
	m := newMillion(t, 1024)
	m.insert(1, 1000)
	m.statistics(freshStatistics)
	first := map[string]int{}
	for _, q := range m.polls("first") {
		first[q.name] = m.check(t, "of all", settings, q, 1000, 1000)
	}
	o := m.listed(t)
	m.grow(func(messages int) {
		if messages == 900_000 {
			o.run(t, `UPDATE outbox_partitions SET snapshot = pg_current_snapshot(), seq = $1 WHERE sink = 'orders'`, messages)
		}
	})
	o.except(t, 50_000)
	open, asked := m.late(200_000, 100_000)
	for _, q := range m.polls("then") {
		asked = append(asked, bounded{q, settings, first[q.name] + 10})
	}
	asked = append(asked, m.round(50_000)...)
	for _, statistics := range []string{staleStatistics, noStatistics, freshStatistics} {
		m.statistics(statistics)
		for _, q := range asked {
			m.check(t, statistics, q.begin, q.question, 3*2048, q.buffers)
		}
		o.checkLists(t, m, statistics)
	}
	open.commit()
}

// A bounded is a statement with the most buffers that it may touch.
type bounded struct {
	question
	begin   string
	buffers int
}

// polls are the reads that a relay sends again and again: where all is read (the probe), where messages wait, and where
// there is no room for them.
func (m *million) polls(run string) []question {
	m.t.Helper()
	idle := m.sessionOf("idle-"+run, 0, false)
	var probe []question
	for range 2 + m.partitions/64 { // a claimed partition counts as one with messages until it was asked
		_, probe = m.asks(idle, room(idle, 2048))
	}
	behind := m.sessionOf("behind-"+run, 64, true)
	r := store.Room{Partitions: m.hot, Messages: 32, Bytes: 1 << 20}
	m.asks(behind, r)
	p, some := m.asks(behind, r)
	r.Messages = 0
	_, none := m.asks(behind, r)
	if n := len(payloads(p)); n != 32 || len(probe) != 1 || probe[0].name != "read_window" || len(some) != 1 || len(none) != 1 {
		m.t.Fatalf("the polls are %v, %v with %d messages, %v", namesOf(probe), namesOf(some), n, namesOf(none))
	}
	probe[0].name, some[0].name, none[0].name = "idle probe", "read of what waits", "read without room"
	return []question{probe[0], some[0], none[0]}
}

// late leaves a transaction of so many messages open, and returns what a relay asks that finds another one late.
func (m *million) late(opened, bulky int) (open *tx, asked []bounded) {
	m.t.Helper()
	write := func(n int) *tx {
		x := m.rig.open()
		x.exec("SET LOCAL session_replication_role = replica")
		x.exec(sqlOf(m.DB, fmt.Sprintf(millionRows, 1, n)))
		return x
	}
	open = write(opened)
	late := m.sessionOf("late", 0, false)
	bulk := write(bulky)
	r := room(late, 2048)
	m.asks(late, r)
	bulk.commit()
	found := map[string]int{}
	for range 10 {
		p, names := m.asks(late, r)
		for _, q := range names {
			found[q.name]++
			switch q.name {
			case "draw":
				asked = append(asked, bounded{q, settings, 60})
			case "read_page":
				asked = append(asked, bounded{q, settings, 4 * 2048})
			}
		}
		m.settle(late, done(p))
		if found["read_page"] == 2 {
			return open, asked
		}
	}
	m.t.Fatalf("the late transaction was read by %v", found)
	return nil, nil
}

// round is what a relay asks while so many messages are parked behind one key.
func (m *million) round(parked int) []bounded {
	m.t.Helper()
	const sink = "round"
	s := m.sessionOf(sink, 256, true)
	m.sessionOf("free", 0, false)
	m.Exec(m.t, `UPDATE `+m.Table("partitions")+` SET relay = NULL WHERE sink = 'free'`)
	due, scheduled := m.park(sink, parked)
	r := store.Room{Partitions: m.hot, Messages: 256, Bytes: 1 << 20}
	m.asks(s, r)
	p, read := m.asks(s, r)
	if got := len(payloads(p)); got != 256 || len(read) != 1 {
		m.t.Fatalf("%d messages were read by %v", got, namesOf(read))
	}
	read[0].name = "read beside what is parked"
	verdicts := verdictsOf(p, m.hot[0], due)
	settle, id, token, n := m.settleOf(s, verdicts), s.member.ID.String(), s.tokenNow(), m.partitions
	lines := settle.verdicts
	named := func(name string, buffers int, args ...any) bounded {
		return bounded{question{name: name, sql: s.sql[name], args: args}, settings, buffers}
	}
	taken := func(name string, buffers int, args ...any) bounded {
		return bounded{question{name: name, sql: m.store.text(name), args: args}, takeOverSettings, buffers}
	}
	return []bounded{
		{read[0], settings, 12 * 256},
		named("settle", 60+n/2, m.settleOf(s, done(p)).args...),
		named("settle_verdicts", 20*len(verdicts.Verdicts), append(settle.args, settle.verdicts.args(s.member.Name)...)...),
		named("lock_lines", 200, sink, lines.keyPartitions),
		named("promote", 40*len(lines.keys), sink, lines.keyPartitions, lines.keys, id),
		named("heads", 20*512, sink, partitionsOf(s), 512),
		named("line_up", 60*len(scheduled), sink, id, scheduled),
		named("followers", 100, sink, m.hot[0], "hot0", int64(0), int64(0), 256, int64(1<<20)),
		named("heartbeat", 60, id, token),
		named("look", 2*n+60, []string{sink}, id),
		named("claim", 100*n, "free", id, n, token, int64(0)),
		named("expired", 60, id),
		named("reload", 2*n+60, sink, id),
		taken("lock_relay", 60, id, true),
		taken("free", 50*n, id),
		taken("held", n+60, id),
	}
}

// park copies messages as if they were parked: most behind hot0, one in a hundred without a key and due, one in a thousand
// scheduled for hot0 and due. It returns the ids of some that are due, and of the scheduled ones.
func (m *million) park(sink string, n int) (due [][16]byte, scheduled []string) {
	m.t.Helper()
	m.Exec(m.t, sqlOf(m.DB, `
		INSERT INTO outbox_parked (sink, place, seq, txid, id, topic, type, payload, content_type, headers, scope, correlation_id, causation_id,
			aggregate_type, aggregate_id, event_id, key_seq, created_at, partition_id, partition_key, reason, due_at)
		SELECT $1, seq, seq, txid, id, topic, type, payload, content_type, headers, scope, correlation_id, causation_id,
			aggregate_type, aggregate_id, event_id, key_seq, created_at, $2, CASE WHEN seq % 100 = 0 THEN '' ELSE 'hot0' END,
			CASE WHEN seq % 100 = 0 THEN 'retry' WHEN seq % 1000 = 1 THEN 'scheduled' ELSE 'behind' END,
			CASE WHEN seq % 100 = 0 OR seq % 1000 = 1 THEN clock_timestamp() END
		FROM outbox_messages WHERE seq > 300000 AND seq <= 300000 + $3`), sink, m.hot[0], n)
	due = pgtest.All[[16]byte](m.t, m.Pool, sqlOf(m.DB, `
		SELECT id FROM outbox_parked WHERE sink = $1 AND partition_key = '' ORDER BY seq LIMIT 90`), sink)
	scheduled = pgtest.All[string](m.t, m.Pool, sqlOf(m.DB, `
		SELECT id::text FROM outbox_parked WHERE sink = $1 AND reason = 'scheduled'`), sink)
	return due, scheduled
}

// verdictsOf has every kind of verdict on a page, and on parked messages.
func verdictsOf(p store.Page, partition int, parked [][16]byte) store.Settlement {
	m := done(p)
	for _, of := range p.Parts {
		for i := range of.Records {
			r := &of.Records[i]
			v := store.Verdict{
				Partition: r.Partition, Seq: r.Seq, ID: r.ID, Key: r.Key, Attempts: 1, Code: "test/code", Error: "no",
				To: store.Park, Reason: store.ReasonRetry, Due: long, Tried: &store.Attempt{No: 1, Outcome: "retry", Code: "test/code"},
			}
			switch i % 3 {
			case 1:
				v.To, v.Blocks = store.Dead, true
			case 2:
				v.To, v.Position, v.Tried = store.Out, "7", nil
			}
			m.Verdicts = append(m.Verdicts, v)
		}
	}
	for i, id := range parked {
		m.Verdicts = append(m.Verdicts, store.Verdict{
			Partition: partition, ID: id, FromParked: true, Attempts: 2, Code: "test/code", Error: "no",
			To: []store.To{store.Out, store.Park, store.Dead}[i%3], Reason: store.ReasonRetry, Due: long,
		})
	}
	return m
}

// settleOf is the settle that a session would send.
func (m *million) settleOf(s *Session, what store.Settlement) *outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.write(s.ledger.settle(what.Done, nil), what)
	s.ledger.abort()
	return w
}

func partitionsOf(s *Session) (parts []int32) {
	for _, p := range held(s) {
		parts = append(parts, int32(p)) //nolint:gosec // at most 16,384
	}
	return parts
}

package postgres

import (
	"fmt"
	"slices"
	"testing"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// selecting joins a relay that holds all partitions of a sink with a selection.
func (g *rig) selecting(sink string, topics ...outbox.Pattern) *Session {
	g.t.Helper()
	id := outbox.NewID()
	s, err := g.store.Join(g.t.Context(), store.Relay{
		ID: id, Name: "relay-" + id.String(), Lease: 3600e9, Heartbeat: 60e9,
	}, store.Sink{Name: sink, Selection: outbox.Selection{Topics: topics}})
	if err != nil {
		g.t.Fatal(err)
	}
	g.renew(s.(*Session))
	return s.(*Session)
}

// mixed writes n messages without a key, every so manieth of the topic wanted.
func (g *rig) mixed(n, every int) {
	g.t.Helper()
	g.Exec(g.t, `INSERT INTO `+g.Table("messages")+` (topic, type, partition_key, payload)
		SELECT CASE WHEN i % $2::int = 0 THEN 'wanted' ELSE 'other' END, 'T', 'k' || i % 1000, convert_to('message ' || i, 'UTF8')
		FROM generate_series(1, $1::int) i`, n, every)
}

// pass reads until there is no more, and counts the reads, and the buffers that they touch.
func (g *rig) pass(tr *trace, s *Session) (messages, reads, touched int) {
	g.t.Helper()
	for {
		tr.take()
		p := g.read(s)
		g.settle(s, done(p))
		messages += len(payloads(p))
		reads++
		if asked, _ := tr.take(); reads == 1 || reads%10 == 0 {
			touched = max(touched, g.touches(asked[0]))
		}
		if !p.More {
			return messages, reads, touched
		}
		if reads > 1000 {
			g.t.Fatal("1000 reads, and still there is more")
		}
	}
}

// A sink that takes little passes over the rest page by page: the limit comes first, what it leaves is dropped afterwards, and L
// moves behind all that was looked at. Otherwise each poll would look for its next message from the last one on.
func TestWhatASinkLeavesIsPassedOverOnce(t *testing.T) {
	t.Parallel()
	const messages = 40_000
	g, tr := newRig(t, 4).traced()
	g.mixed(messages, 1000)
	g.Exec(t, `ANALYZE `+g.Table("messages"))
	all := g.selecting("all")
	tr.know(all)
	_, most, usual := g.pass(tr, all)
	for sink, want := range map[string]int{"wanted": messages / 1000, "nothing": 0} {
		s := g.selecting(sink, outbox.Pattern(sink))
		tr.know(s)
		got, reads, touched := g.pass(tr, s)
		if got != want || reads > most+2 {
			t.Errorf("%s: %d messages in %d reads, want %d in at most %d", sink, got, reads, want, most+2)
		}
		if touched > 2*usual {
			t.Errorf("%s: a read touches %d buffers; one of a sink that takes all: %d", sink, touched, usual)
		}
		tr.take()
		g.read(s)
		asked, _ := tr.take()
		if n := g.touches(asked[0]); n > 60 {
			t.Errorf("%s: a poll touches %d buffers when all is passed over", sink, n)
		}
		// What was passed over is written down though nothing was settled, and a restart does not begin again.
		s.mu.Lock()
		s.settled = s.settled.Add(-cursorAge)
		s.mu.Unlock()
		g.renew(s)
		if least := pgtest.One[int64](t, g.Pool, `SELECT min(l) FROM (SELECT unnest(seqs) FROM `+g.Table("cursors")+` WHERE sink = $1) t(l)`, sink); least < messages {
			t.Errorf("%s: the durable cursor stands at %d", sink, least)
		}
	}
}

// The patterns mean in SQL what they mean in Go.
func TestPatternsMeanTheSameInSQL(t *testing.T) {
	t.Parallel()
	g := newRig(t, 1)
	topics := []string{"a", "a.b", "a.b.c", "A", "a+", "a.b+c", "(a", `a\.b`, "é.ü", "a b", "_", "%", "a.%", "a..b", ".a", "a.", "^a$", "a|b", "[a]", "a{2}"}
	patterns := []outbox.Pattern{">", "*", "a", "a.*", "a.>", "*.b", "*.>", "(a", "a+", "é.*", "^a$", "a|b", "[a]", "a{2}", `a\`, "%", "_"}
	for _, p := range patterns {
		expression := expression([]outbox.Pattern{p})
		got := pgtest.All[string](t, g.Pool, `SELECT t FROM unnest($1::text[]) t WHERE t ~ $2`, topics, expression)
		var want []string
		for _, topic := range topics {
			if p.Match(topic) {
				want = append(want, topic)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s as %s matches %q, want %q", p, expression, got, want)
		}
	}
	if both := expression([]outbox.Pattern{"a", "b.*"}); both != `^(a|b\.[^.]+)$` {
		t.Error(both)
	}
}

// A row that does not fit the bytes of a read, of a sink that leaves others behind it, comes with the next one.
func TestBytesBoundWhatASinkTakes(t *testing.T) {
	t.Parallel()
	g := newRig(t, 1)
	s := g.selecting("orders", "wanted")
	for i := range 30 {
		topic := "other"
		if i%3 == 0 {
			topic = "wanted"
		}
		g.Exec(t, `INSERT INTO `+g.Table("messages")+` (topic, type, partition_key, payload) VALUES ($1, 'T', 'k', convert_to($2, 'UTF8') || decode(repeat('00', 90), 'hex'))`, topic, fmt.Sprintf("message %02d", i))
	}
	var got []string
	for range 40 {
		p, err := s.Read(t.Context(), store.Room{Partitions: []int{0}, Messages: 100, Bytes: 250})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range payloads(p) {
			got = append(got, text[:10])
		}
		if len(payloads(p)) > 3 {
			t.Errorf("%d messages of 100 bytes in a room of 250", len(payloads(p)))
		}
		g.settle(s, done(p))
		if !p.More {
			break
		}
	}
	var want []string
	for i := 0; i < 30; i += 3 {
		want = append(want, fmt.Sprintf("message %02d", i))
	}
	wantTexts(t, "in the end", got, want)
}

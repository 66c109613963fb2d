package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The rules of owning and settling: each test here is named after one, and fails without it.

// rows is all that tables hold, as text.
func (g *rig) rows(tables ...string) string {
	g.t.Helper()
	var all strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&all, "%s:\n%s\n", table,
			pgtest.One[string](g.t, g.Pool, `SELECT coalesce(string_agg(t::text, E'\n' ORDER BY t::text), '') FROM `+g.Table(table)+` t`))
	}
	return all.String()
}

// outcomes are the tables that a settle writes, and whatever says who owns what.
func (g *rig) outcomes() string {
	g.t.Helper()
	return g.rows("sinks", "relays", "partitions", "cursors", "parked", "dead", "attempts", "positions")
}

// asleep lets the next Renew send a heartbeat.
func asleep(s *Session) {
	s.member.mu.Lock()
	defer s.member.mu.Unlock()
	s.member.sent = time.Time{}
}

// stale is a session that was taken over, with what it had in hand.
type stale struct {
	*rig
	*Session
	page   store.Page
	parked map[string]store.Parked // by payload
}

// record finds a message of the page.
func (s *stale) record(text string) store.Record {
	s.t.Helper()
	for _, part := range s.page.Parts {
		for _, r := range part.Records {
			if string(r.Payload) == text {
				return r
			}
		}
	}
	s.t.Fatalf("%s was not read", text)
	return store.Record{}
}

func verdictOf(r store.Record, v store.Verdict) store.Verdict {
	v.Partition, v.Seq, v.ID, v.Key = r.Partition, r.Seq, r.ID, r.Key
	v.Code, v.Error = "onward/rejected", "no"
	return v
}

// judge settles one verdict on a message of the page, and nothing else.
func (s *stale) judge(text string, v store.Verdict) error {
	_, err := s.Settle(s.t.Context(), store.Settlement{Verdicts: []store.Verdict{verdictOf(s.record(text), v)}})
	return err
}

// rejudge settles one verdict on a parked message.
func (s *stale) rejudge(text string, v store.Verdict) error {
	p, known := s.parked[text]
	if !known {
		s.t.Fatalf("%s is not parked", text)
	}
	v = verdictOf(store.Record{Record: p.Record}, v)
	v.FromParked = true
	_, err := s.Settle(s.t.Context(), store.Settlement{Verdicts: []store.Verdict{v}})
	return err
}

// overtaken has read "1" to "3", parked "p1" to "p3", and lost everything to another relay.
func overtaken(t *testing.T) *stale {
	g := newRig(t, 4)
	s := &stale{rig: g, Session: g.join(), parked: map[string]store.Parked{}}
	for i := range 3 {
		g.write(fmt.Sprint("parked-", i), fmt.Sprint("p", i+1))
	}
	s.page = g.read(s.Session)
	m := done(s.page)
	for _, text := range payloads(s.page) {
		m.Verdicts = append(m.Verdicts, verdictOf(s.record(text), store.Verdict{To: store.Park, Reason: store.ReasonRetry, Attempts: 1}))
	}
	g.settle(s.Session, m)
	h, err := s.Heads(t.Context(), held(s.Session), 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range h.Due {
		s.parked[string(p.Payload)] = p
	}
	for i := range 3 {
		g.write(fmt.Sprint("key-", i), fmt.Sprint(i+1))
	}
	s.page = g.read(s.Session)
	g.crash(s.Session)
	// No head: whoever promotes the keys of these messages shows it.
	g.Exec(t, `UPDATE `+g.Table("parked")+` SET due_at = NULL`)
	return s
}

// A take-over deletes the cursor row, and all that a settle does is done only from the row that it replaces: whatever a
// stale owner tries changes nothing, and it learns that it has lost.
func TestAStaleOwnerChangesNothing(t *testing.T) {
	t.Parallel()
	failed := &store.Attempt{No: 2, Outcome: "rejected", Code: "onward/rejected", Error: "no"}
	for name, act := range map[string]func(s *stale) error{
		"settles": func(s *stale) error {
			_, err := s.Settle(s.t.Context(), done(s.page))
			return err
		},
		"gives back": func(s *stale) error { return s.GiveBack(s.t.Context(), held(s.Session)) },
		"renews": func(s *stale) error {
			_, err := s.Renew(s.t.Context(), true)
			return err
		},
		"sends a heartbeat": func(s *stale) error {
			asleep(s.Session)
			_, err := s.Renew(s.t.Context(), true)
			return err
		},
		"positions":   func(s *stale) error { return s.judge("1", store.Verdict{To: store.Out, Position: "7"}) },
		"parks":       func(s *stale) error { return s.judge("1", store.Verdict{To: store.Park, Reason: store.ReasonRetry}) },
		"kills":       func(s *stale) error { return s.judge("1", store.Verdict{To: store.Dead, Blocks: true}) },
		"notes a try": func(s *stale) error { return s.judge("1", store.Verdict{To: store.Out, Tried: failed}) },
		"parks again": func(s *stale) error {
			return s.rejudge("p1", store.Verdict{To: store.Park, Reason: store.ReasonBehind})
		},
		"unparks": func(s *stale) error { return s.rejudge("p2", store.Verdict{To: store.Out}) },
		"kills parked": func(s *stale) error {
			return s.rejudge("p3", store.Verdict{To: store.Dead, Blocks: true, Tried: failed})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := overtaken(t)
			before := s.outcomes()
			err := act(s)
			if !errors.Is(err, store.ErrReload) && !errors.Is(err, store.ErrFenced) {
				t.Errorf("a stale owner %s: %v, want ErrReload or ErrFenced", name, err)
			}
			if errors.Is(err, store.ErrReload) {
				if _, err := s.Read(t.Context(), room(s.Session, 10)); !errors.Is(err, store.ErrReload) {
					t.Errorf("a read of the void session: %v", err)
				}
				if _, err = s.Renew(t.Context(), true); !errors.Is(err, store.ErrReload) {
					t.Errorf("a renewal of the void session: %v", err)
				}
				s.Reset()
				_, err = s.Renew(t.Context(), true)
				if !errors.Is(err, store.ErrFenced) {
					t.Errorf("loaded again: %v, want ErrFenced", err)
				}
			}
			if _, err := s.Settle(t.Context(), store.Settlement{}); !errors.Is(err, store.ErrFenced) {
				t.Errorf("a settle after that: %v, want ErrFenced", err)
			}
			if after := s.outcomes(); after != before {
				t.Errorf("a stale owner %s, and it has an effect: before\n%s\nafter\n%s", name, before, after)
			}
		})
	}
}

// The number of the row is the version of what a relay owns: with any other one nothing is settled.
func TestASettleNeedsTheNumberOfTheRow(t *testing.T) {
	t.Parallel()
	for _, by := range []int64{-1, 1, 1000} {
		t.Run(fmt.Sprint(by), func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 4)
			s := g.join()
			g.write("a", "1", "2")
			g.settle(s, store.Settlement{})
			p := g.read(s)
			s.no += by
			before := g.outcomes()
			if _, err := s.Settle(t.Context(), done(p)); !errors.Is(err, store.ErrReload) {
				t.Errorf("settled with another number: %v", err)
			}
			if after := g.outcomes(); after != before {
				t.Errorf("before\n%s\nafter\n%s", before, after)
			}
			g.renew(s)
			wantTexts(t, "loaded again", g.drain(s), []string{"1", "2"})
		})
	}
}

// What is owned and from where is one statement: a settle that comes between two would give the cursor of one owner with
// the partitions of another.
func TestAReloadIsOneStatement(t *testing.T) {
	t.Parallel()
	g, tr := newRig(t, 4).traced()
	s := g.join()
	tr.know(s)
	g.write("a", "1", "2")
	g.settle(s, done(g.read(s)))
	g.write("a", "3")
	s.mu.Lock()
	s.void = store.ErrReload
	s.mu.Unlock()
	tr.take()
	if l := g.renew(s); len(l.Owned) != 4 {
		t.Errorf("%d partitions owned, want 4", len(l.Owned))
	}
	if asked, batches := tr.take(); !slices.Equal(namesOf(asked), []string{"renumber", "reload", "look"}) || batches != 2 {
		t.Errorf("loaded by %v in %d batches", namesOf(asked), batches)
	}
	wantTexts(t, "then", g.drain(s), []string{"3"})
}

// A settle whose answer was lost may reach the server after its relay has loaded what it owns. Then it changes nothing: a
// give-back would free what the relay holds, and two would publish it; a settle would void the session again, and cost a second
// window of duplicates.
func TestASettleThatComesAfterAReloadChangesNothing(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string][]int{"settle": nil, "give-back": {0, 1, 2, 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 4)
			s := g.join()
			g.write("a", "1", "2")
			p := g.read(s)
			s.mu.Lock()
			late := s.write(s.ledger.settle(done(p).Done, gone), done(p)).args
			s.mu.Unlock()
			_ = s.fail("settle", "its fate is unknown", nil)
			s.Reset()
			g.renew(s)
			before := g.outcomes()
			var no, own int64
			if err := g.Pool.QueryRow(t.Context(), s.sql["settle"], late...).Scan(&no, &own); err != nil {
				t.Fatal(err)
			}
			if after := g.outcomes(); after != before || no >= 0 {
				t.Errorf("it was taken as row %d: before\n%s\nafter\n%s", no, before, after)
			}
			wantTexts(t, "loaded again", g.drain(s), []string{"1", "2"})
			if len(held(s)) != 4 {
				t.Errorf("it holds %v", held(s))
			}
		})
	}
}

// The other order: what came before the reload counts.
func TestASettleThatComesBeforeAReloadCounts(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	g.write("a", "1", "2", "3")
	p := g.read(s)
	m := done(p)
	m.Done[0].N = 2
	s.mu.Lock()
	late := s.write(s.ledger.settle(m.Done, nil), m).args
	s.mu.Unlock()
	_ = s.fail("settle", "its fate is unknown", nil)
	s.Reset()
	if _, err := g.Pool.Exec(t.Context(), s.sql["settle"], late...); err != nil {
		t.Fatal(err)
	}
	g.renew(s)
	wantTexts(t, "loaded again", g.drain(s), []string{"3"})
	g.settle(s, store.Settlement{})
}

// A give-back is a settle: the partition is free with the cursor that it has at that moment, not with the one that it was
// claimed with, and with the same fence.
func TestAGiveBackIsASettle(t *testing.T) {
	t.Parallel()
	g, tr := newRig(t, 4).traced()
	s := g.join()
	tr.know(s)
	part := 1
	g.write(keyIn(part, 4), numbered("", 10)...)
	g.drain(s)
	g.write(keyIn(part, 4), numbered("more", 50)...)
	p := g.read(s)
	m := done(p)
	m.Done[0].N = 45
	g.settle(s, m)
	tr.take()
	no := s.no
	if err := s.GiveBack(t.Context(), []int{part}); err != nil {
		t.Fatal(err)
	}
	if asked, batches := tr.take(); !slices.Equal(namesOf(asked), []string{"settle"}) || batches != 1 {
		t.Errorf("given back by %v in %d batches", namesOf(asked), batches)
	}
	if now := pgtest.One[int64](t, g.Pool, `SELECT no FROM `+g.Table("cursors")); now != no+1 {
		t.Errorf("the row has number %d after %d", now, no)
	}
	next := g.join()
	wantTexts(t, "handed over to "+fmt.Sprint(held(next)), g.drain(next), numbered("more", 50)[45:])
	wantTexts(t, "after a restart", g.drain(g.crash(next)), nil)
}

// A message that comes again after a crash, though it has its outcome, keeps that one.
func TestAnOutcomeThatComesAgainStands(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := &stale{rig: g, Session: g.join()}
	texts := []string{"parked", "dead", "placed"}
	for _, text := range texts {
		g.write("key of "+text, text)
	}
	settle := func(attempts int, code, position string) {
		t.Helper()
		s.page = g.read(s.Session)
		wantTexts(t, "read", sorted(payloads(s.page)), sorted(texts))
		tried := &store.Attempt{No: 1, Outcome: code, Code: "onward/rejected", Error: code}
		g.settle(s.Session, store.Settlement{Verdicts: []store.Verdict{
			verdictOf(s.record("parked"), store.Verdict{To: store.Park, Reason: store.ReasonRetry, Due: time.Hour, Attempts: attempts, Tried: tried}),
			verdictOf(s.record("dead"), store.Verdict{To: store.Dead, Attempts: attempts, Tried: tried}),
			verdictOf(s.record("placed"), store.Verdict{To: store.Out, Position: position}),
		}})
	}
	settle(1, "first", "7")
	before := g.rows("parked", "dead", "attempts", "positions")
	s.Session = g.crash(s.Session)
	settle(2, "second", "8")
	if after := g.rows("parked", "dead", "attempts", "positions"); after != before {
		t.Errorf("first\n%s\nand then\n%s", before, after)
	}
	for table, want := range map[string]int{"parked": 1, "dead": 1, "attempts": 2, "positions": 1} {
		if n := pgtest.One[int](t, g.Pool, `SELECT count(*) FROM `+g.Table(table)); n != want {
			t.Errorf("%d rows in %s, want %d", n, table, want)
		}
	}
}

// The snapshot of a row may stand before late rows that are settled, while another partition's are not. After a crash the
// first read finds them again: those that have their outcome do not come, and until that read nothing that is parked goes
// out, for afterwards nobody would know it again.
func TestALateRowThatHasItsOutcomeDoesNotComeAgain(t *testing.T) {
	t.Parallel()
	for statement, more := range map[string]int{"read_shares": 0, "read_page": 40} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			g, tr := newRig(t, 4).traced()
			s := &stale{rig: g, Session: g.join(pages(16))}
			tr.know(s.Session)
			g.drain(s.Session)
			late, keys := g.open(), keysIn(2, 4, 4)
			late.write(keyIn(1, 4), "left")
			late.write(keys[0], "parked")
			late.write(keys[1], "dead")
			late.write(keys[2], "discarded")
			late.exec(`INSERT INTO `+g.Table("messages")+` (topic, type, partition_key, payload, available_at)
				VALUES ('t', 'T', $1, 'scheduled', now() + interval '1 hour')`, keys[3])
			late.write(keyIn(1, 4), numbered("left", more)...)
			g.write("a", "early")
			wantTexts(t, "at first", g.drain(s.Session), []string{"early"})
			late.commit()
			for len(s.page.Parts) == 0 {
				s.page = g.read(s.Session)
			}

			tried := &store.Attempt{No: 1, Outcome: "retry", Code: "onward/rejected"}
			m := done(s.page)
			m.Done = slices.DeleteFunc(m.Done, func(d store.Done) bool { return d.Partition == 1 })
			m.Verdicts = []store.Verdict{
				verdictOf(s.record("parked"), store.Verdict{To: store.Park, Reason: store.ReasonRetry, Attempts: 1, Tried: tried}),
				verdictOf(s.record("dead"), store.Verdict{To: store.Dead, Attempts: 1, Tried: tried}),
				verdictOf(s.record("discarded"), store.Verdict{To: store.Dead, Attempts: 1, Tried: tried}),
				verdictOf(s.record("scheduled"), store.Verdict{To: store.Park, Reason: store.ReasonScheduled}),
			}
			g.settle(s.Session, m)
			admin, err := NewAdmin(g.Pool, Config{Schema: g.Schema, TablePrefix: g.Prefix})
			if err != nil {
				t.Fatal(err)
			}
			if err := admin.Discard(t.Context(), store.Act{Sink: "orders", ID: s.record("discarded").ID, Reason: "test"}); err != nil {
				t.Fatal(err)
			}

			next := g.crash(s.Session, pages(16))
			tr.know(next)
			wantHeads := func(when string, want ...string) {
				t.Helper()
				h, err := next.Heads(t.Context(), held(next), 10)
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, p := range h.Due {
					got = append(got, string(p.Payload))
				}
				wantTexts(t, "heads "+when, got, want)
				if h.Next <= 0 {
					t.Errorf("heads %s: nothing says when to ask again", when)
				}
			}
			wantHeads("before the first read")
			tr.take()
			wantTexts(t, "again", g.collect(next, 0, 1, 2, 3), append([]string{"left"}, numbered("left", more)...))
			if asked, _ := tr.take(); !slices.Contains(namesOf(asked), statement) {
				t.Errorf("read by %v, want %s", namesOf(asked), statement)
			}
			wantHeads("after it", "parked")
		})
	}
}

package postgres

import (
	"testing"
	"time"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// age lets so much time pass for all that was kept of settles.
func (g *rig) age(by time.Duration) {
	g.t.Helper()
	g.Exec(g.t, sqlOf(g.DB, `UPDATE outbox_sinks SET created_at = created_at - $1::interval`), by)
	g.Exec(g.t, sqlOf(g.DB, `UPDATE outbox_cursors SET settled_at = settled_at - $1::interval`), by)
	g.Exec(g.t, sqlOf(g.DB, `UPDATE outbox_progress SET settled_at = settled_at - $1::interval, minute = minute - $1::interval`), by)
}

// publish writes a message of the key and settles it.
func (g *rig) publish(s *Session, key, text string) {
	g.t.Helper()
	g.write(key, text)
	if got := g.drain(s); len(got) != 1 || got[0] != text {
		g.t.Fatalf("published %v, want %s", got, text)
	}
}

func (g *rig) copies() int {
	g.t.Helper()
	return pgtest.One[int](g.t, g.Pool, sqlOf(g.DB, `SELECT count(*) FROM outbox_progress`))
}

// published is how many minutes ago the message with this payload went out: at the earliest and at the latest.
func (g *rig) published(text string) (earliest, latest int) {
	g.t.Helper()
	admin, err := NewAdmin(g.Pool, Config{Schema: g.Schema, TablePrefix: g.Prefix})
	if err != nil {
		g.t.Fatal(err)
	}
	id := pgtest.One[[16]byte](g.t, g.Pool, sqlOf(g.DB, `SELECT id FROM outbox_messages WHERE payload = convert_to($1, 'UTF8')`), text)
	m, err := admin.Message(g.t.Context(), id)
	if err != nil {
		g.t.Fatal(err)
	}
	status, err := admin.Status(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	s := m.States[0]
	if s.State != store.StatePublished || s.PublishedAfter == nil || s.PublishedBy == nil {
		g.t.Fatalf("%s: %+v", text, s)
	}
	ago := func(at time.Time) int {
		return int(status.Now.Truncate(time.Minute).Sub(at.Truncate(time.Minute)) / time.Minute)
	}
	return ago(*s.PublishedAfter), ago(*s.PublishedBy)
}

func (g *rig) wantPublished(text string, earliest, latest int) {
	g.t.Helper()
	// A minute may end between settling and asking.
	if e, l := g.published(text); e < earliest || e > earliest+1 || l < latest || l > latest+1 {
		g.t.Errorf("%s: published between %d and %d minutes ago, want between %d and %d", text, e, l, earliest, latest)
	}
}

// Each message says the minute in which it went out, whatever came afterwards; a relay that stands still leaves no copies, and
// each minute one.
func TestAMessageSaysTheMinuteInWhichItWasPublished(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	g.publish(s, "k", "first")
	g.age(10 * time.Minute)
	g.publish(s, "k", "second")
	if n := g.copies(); n != 1 {
		t.Errorf("%d copies after two minutes with messages, want that of the first", n)
	}
	late := g.open()
	late.write("k", "late")
	g.publish(s, "l", "beside it")
	g.age(5 * time.Minute)
	late.commit()
	wantTexts(t, "late", g.drain(s), []string{"late"})
	g.age(3 * time.Minute)
	copies := g.copies()
	for range 3 { // of the last minute with a message one, of those without any none
		g.settle(s, store.Settlement{})
		g.age(time.Minute)
	}
	if n := g.copies(); n != copies+1 {
		t.Errorf("%d copies of a relay that stands still, want 1", n-copies)
	}
	g.wantPublished("first", 21, 21)
	g.wantPublished("second", 11, 11)
	g.wantPublished("beside it", 11, 11)
	g.wantPublished("late", 6, 6)
}

// What a relay published before it gave its partitions back, left or was taken over keeps its minute. Where nobody settled for
// some minutes while the partition changed hands, the message says so.
func TestAPublishedMessageKeepsItsMinuteWhenRelaysChange(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	g.publish(s, "k", "of the first")
	if err := s.GiveBack(t.Context(), held(s)); err != nil {
		t.Fatal(err)
	}
	g.age(4 * time.Minute)
	g.renew(s)
	g.publish(s, "k", "after giving back")
	g.age(4 * time.Minute)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = g.join()
	g.publish(s, "k", "of the second")
	g.age(3 * time.Minute)
	s = g.crash(s)
	g.publish(s, "k", "of the third")
	g.age(2 * time.Minute)
	g.wantPublished("of the first", 13, 13)
	g.wantPublished("after giving back", 13, 9) // since it was given back
	g.wantPublished("of the second", 9, 5)
	g.wantPublished("of the third", 5, 2)
}

// Old copies go, but for the newest of a relay that runs, which the next one counts from.
func TestOldProgressIsForgotten(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	for _, text := range []string{"a", "b", "c", "d"} {
		g.publish(s, "k", text)
		g.age(time.Minute)
	}
	forget := func(after time.Duration) {
		t.Helper()
		g.Exec(t, g.store.text("forget_progress"), after.Microseconds())
	}
	if n := g.copies(); n != 3 {
		t.Fatalf("%d copies of four minutes, want 3", n)
	}
	forget(time.Hour)
	if n := g.copies(); n != 3 {
		t.Errorf("%d copies are left of those that are young, want 3", n)
	}
	g.age(2 * time.Hour)
	forget(time.Hour)
	if n := g.copies(); n != 1 {
		t.Errorf("%d copies are left of a relay that runs, want 1", n)
	}
	g.publish(s, "k", "e")
	sum := pgtest.One[int](t, g.Pool, sqlOf(g.DB, `SELECT sum(count)::int FROM outbox_progress`))
	if sum != 2 { // of c, which was kept, and of d
		t.Errorf("the copies count %d messages, want 2", sum)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.age(2 * time.Hour)
	forget(time.Hour)
	if n := g.copies(); n != 0 {
		t.Errorf("%d copies are left of a relay that left, want none", n)
	}
}

// The minutes add up to what was published, whoever published it.
func TestMinutesCountWhatEachRelayPublished(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	a, b, ofA, ofB := g.pair()
	admin, err := NewAdmin(g.Pool, Config{Schema: g.Schema, TablePrefix: g.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		g.publish(a, keyIn(ofA[0], 4), "a")
		g.publish(b, keyIn(ofB[0], 4), "b")
		g.age(7 * time.Minute)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.publish(b, keyIn(ofB[0], 4), "last")
	minutes, err := admin.Minutes(t.Context(), "orders", time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var counts []int64
	for _, m := range minutes {
		counts = append(counts, m.Published)
	}
	total := int64(0)
	for _, n := range counts {
		total += n
	}
	if total != 7 || len(counts) < 4 || len(counts) > 8 || counts[len(counts)-1] != 1 { // a minute may end within a round
		t.Errorf("the minutes have %v, want 2, 2, 2, 1", counts)
	}
	status, err := admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rate := status.Sinks[0].Rate; rate < 1.0/360 || rate > 1.0/300 {
		t.Errorf("the rate is %f, want that of one message in the last five minutes", rate)
	}
}

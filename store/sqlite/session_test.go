package sqlite

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var aRoom = store.Room{Partitions: []int{0}, Messages: 1000, Bytes: 1 << 20}

func aRelay() store.Relay {
	return store.Relay{ID: outbox.NewID(), Name: outbox.NewID().String(), Lease: time.Minute, Heartbeat: 20 * time.Second}
}

// joined is a session that holds its partition.
func (f file) joined(t testing.TB, r store.Relay) (*Store, *Session) {
	t.Helper()
	s := f.store(t)
	t.Cleanup(func() { _ = s.Close() })
	session, err := s.Join(t.Context(), r, store.Sink{Name: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if lease, err := session.Renew(t.Context(), true); err != nil || len(lease.Owned) != 1 {
		t.Fatalf("%+v, %v", lease, err)
	}
	return s, session.(*Session)
}

// While nobody writes, a poll looks at no table; a commit of any connection is seen by the next one.
func TestAnIdlePollLooksAtNoTable(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	_, s := f.joined(t, aRelay())
	read := func() int {
		t.Helper()
		page, err := s.Read(t.Context(), aRoom)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Parts) == 0 {
			return 0
		}
		return len(page.Parts[0].Records)
	}
	if n := read(); n != 0 {
		t.Fatalf("%d messages", n)
	}
	for _, name := range []string{"begin_read", "look", "page"} {
		s.store.reader.sql[name+" "] = s.store.reader.sql[name]
		s.store.reader.sql[name] = `SELECT no_such_function()`
		_ = s.store.reader.stmts[name].Close()
		delete(s.store.reader.stmts, name)
	}
	for range 3 {
		if n := read(); n != 0 {
			t.Fatalf("%d messages", n)
		}
	}
	f.fill(t, 2)
	if _, err := s.Read(t.Context(), aRoom); err == nil {
		t.Error("a commit was not noticed")
	}
	for _, name := range []string{"begin_read", "look", "page"} {
		s.store.reader.sql[name] = s.store.reader.sql[name+" "]
	}
	if n := read(); n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
}

// A relay that stands by writes nothing between its heartbeats: each write is one that other writers wait for.
func TestStandingByWritesNothing(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	_, first := f.joined(t, aRelay())
	second := f.store(t)
	t.Cleanup(func() { _ = second.Close() })
	session, err := second.Join(t.Context(), aRelay(), store.Sink{Name: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := f.db.Conn(t.Context()) // its data_version changes with each commit of another connection
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watcher.Close() })
	version := func() (n int64) {
		t.Helper()
		if err := watcher.QueryRowContext(t.Context(), `PRAGMA data_version`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := version()
	for range 20 {
		for _, s := range []store.Session{first, session} {
			if _, err := s.Renew(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Heads(t.Context(), []int{0}, 10); err != nil {
				t.Fatal(err)
			}
		}
	}
	if after := version(); after != before {
		t.Error("somebody wrote")
	}
}

// What waits for another connection's transaction is repeated as it is: nobody needs to load anything again.
func TestABusyFileIsWaitedForAndThenAnError(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	f.fill(t, 2)
	db := f.open(t)
	s, err := Open(t.Context(), db, Config{TablePrefix: testPrefix, BusyTimeout: 30 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	session, err := s.Join(t.Context(), aRelay(), store.Sink{Name: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Renew(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	page, err := session.Read(t.Context(), aRoom)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := f.db.BeginTx(t.Context(), nil) // takes the write lock
	if err != nil {
		t.Fatal(err)
	}
	st := store.Settlement{Done: []store.Done{{Read: page.No, N: 2}}, Published: 2}
	began := time.Now()
	_, err = session.Settle(t.Context(), st)
	if !errors.Is(err, ErrBusy) || outbox.Hint(err) == "" || time.Since(began) < 30*time.Millisecond {
		t.Errorf("settle: %v after %s, want ErrBusy with a hint after 30ms", err, time.Since(began))
	}
	if _, err := session.Read(t.Context(), aRoom); err != nil {
		t.Errorf("a read: %v", err)
	}
	if err := Migrate(t.Context(), f.db, MigrateConfig{TablePrefix: "other_", LockTimeout: 10 * time.Millisecond}); !errors.Is(err, ErrBusy) {
		t.Errorf("migrate: %v, want ErrBusy", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := session.Settle(t.Context(), st); err != nil {
		t.Errorf("settle again: %v", err)
	}
	if n := one[int64](t, f, `SELECT published FROM outbox_partitions`); n != 2 {
		t.Errorf("%d published, want 2", n)
	}
}

// A settle that landed and was not known to have is not written a second time.
func TestASettleOnAnotherCursorIsFenced(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	f.fill(t, 2)
	_, s := f.joined(t, aRelay())
	page, err := s.Read(t.Context(), aRoom)
	if err != nil {
		t.Fatal(err)
	}
	f.exec(t, `UPDATE outbox_partitions SET no = no + 1`)
	if _, err := s.Settle(t.Context(), store.Settlement{Done: []store.Done{{Read: page.No, N: 2}}, Published: 2}); !errors.Is(err, store.ErrReload) {
		t.Errorf("%v, want ErrReload", err)
	}
	if n := one[int64](t, f, `SELECT seq + published FROM outbox_partitions`); n != 0 {
		t.Error("it was written")
	}
	s.Reset()
	if lease, err := s.Renew(t.Context(), true); err != nil || len(lease.Owned) != 1 {
		t.Errorf("%+v, %v", lease, err)
	}
}

// A settle whose COMMIT failed is loaded again: the cursor in the file says what became of it.
func TestASettleOfUnknownFateIsLoadedAgain(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	f.fill(t, 3)
	st, s := f.joined(t, aRelay())
	page, err := s.Read(t.Context(), aRoom)
	if err != nil {
		t.Fatal(err)
	}
	commit := st.writer.sql["commit"]
	st.writer.sql["commit"] = `SELECT no_such_function()`
	_ = st.writer.stmts["commit"].Close()
	delete(st.writer.stmts, "commit")
	settlement := store.Settlement{Done: []store.Done{{Read: page.No, N: 1}}, Published: 1}
	if _, err := s.Settle(t.Context(), settlement); !errors.Is(err, store.ErrReload) {
		t.Fatalf("%v, want ErrReload", err)
	}
	if _, err := s.Read(t.Context(), aRoom); !errors.Is(err, store.ErrReload) {
		t.Errorf("a read of a void session: %v, want ErrReload", err)
	}
	st.writer.sql["commit"] = commit
	s.Reset()
	if lease, err := s.Renew(t.Context(), true); err != nil || len(lease.Owned) != 1 {
		t.Fatalf("%+v, %v", lease, err)
	}
	if page, err = s.Read(t.Context(), aRoom); err != nil || len(page.Parts[0].Records) != 3 {
		t.Errorf("%+v, %v, want all three again", page, err)
	}
}

// A file that was put back has not the last heartbeats: the lease ends earlier in it than the relay believes.
func TestALeaseIsRenewedWhereTheSessionIsLoadedAgain(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	_, s := f.joined(t, aRelay())
	f.exec(t, `UPDATE outbox_relays SET leased_until = leased_until - 1000000`)
	s.Reset()
	lease, err := s.Renew(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if until := time.UnixMicro(one[int64](t, f, `SELECT leased_until FROM outbox_relays`)); lease.Until.After(until) {
		t.Errorf("leased until %s, and the file has %s", lease.Until, until)
	}
}

// A COMMIT for which the disk has no room did nothing, and that is known. Were the session loaded again, all that is published and
// not settled would come again, every time, for as long as the disk is full.
func TestASettleThatFindsTheDiskFullIsRepeatedAsItIs(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	f.fill(t, 3)
	st, s := f.joined(t, aRelay())
	page, err := s.Read(t.Context(), aRoom)
	if err != nil {
		t.Fatal(err)
	}
	commit := st.writer.sql["commit"]
	st.writer.sql["commit"] = `CREATE TABLE filler AS SELECT zeroblob(1000000)`
	_ = st.writer.stmts["commit"].Close()
	delete(st.writer.stmts, "commit")
	most := func(pages int) {
		if _, err := st.writer.conn.ExecContext(t.Context(), `PRAGMA max_page_count = `+strconv.Itoa(pages)); err != nil {
			t.Fatal(err)
		}
	}
	most(1) // as many as there are
	settlement := store.Settlement{Done: []store.Done{{Read: page.No, N: 3}}, Published: 3}
	if _, err := s.Settle(t.Context(), settlement); !errors.Is(err, ErrFull) || errors.Is(err, store.ErrReload) {
		t.Fatalf("%v, want ErrFull", err)
	}
	st.writer.sql["commit"] = commit
	delete(st.writer.stmts, "commit")
	most(1 << 30)
	if _, err := s.Settle(t.Context(), settlement); err != nil {
		t.Fatalf("settle again: %v", err)
	}
	if n := one[int64](t, f, `SELECT published FROM outbox_partitions`); n != 3 {
		t.Errorf("%d published, want 3", n)
	}
}

// A sink that takes little passes over the rest in large steps, and its cursor goes with it: nothing is read twice after a
// restart, though nothing was settled.
func TestWhatIsPassedOverIsPassedForGood(t *testing.T) {
	t.Parallel()
	const passes = 300
	f := newOutbox(t)
	f.fill(t, passes+10)
	s := f.store(t)
	t.Cleanup(func() { _ = s.Close() })
	sink := store.Sink{Name: "few", Selection: outbox.Selection{Topics: []outbox.Pattern{"few"}}}
	r := aRelay()
	r.Heartbeat = time.Nanosecond // each renewal is one
	session, err := s.Join(t.Context(), r, sink)
	if err != nil {
		t.Fatal(err)
	}
	session.(*Session).passes = passes //nolint:forcetypeassert // it is one
	renew := func() {
		t.Helper()
		if _, err := session.Renew(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
	renew()
	for i, want := range []struct {
		more bool
		seq  int64
	}{{true, passes}, {false, passes + 10}, {false, passes + 10}} {
		page, err := session.Read(t.Context(), aRoom)
		if err != nil || len(page.Parts) > 0 || page.More != want.more {
			t.Fatalf("read %d: %+v, %v", i, page, err)
		}
		renew()
		if got := one[int64](t, f, `SELECT seq FROM outbox_partitions`); got != want.seq {
			t.Errorf("read %d: the cursor is at %d, want %d", i, got, want.seq)
		}
	}
	f.exec(t, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('few', 'T', '1'), ('other', 'T', '2'), ('few', 'T', '3')`)
	page, err := session.Read(t.Context(), aRoom)
	if err != nil || len(page.Parts) != 1 || len(page.Parts[0].Records) != 2 {
		t.Fatalf("%+v, %v", page, err)
	}
	renew()
	if got := one[int64](t, f, `SELECT seq FROM outbox_partitions`); got != passes+10 {
		t.Errorf("the cursor is at %d before anything was settled", got)
	}
	if _, err := session.Settle(t.Context(), store.Settlement{Done: []store.Done{{Read: page.No, N: 1}}, Published: 1}); err != nil {
		t.Fatal(err)
	}
	renew()
	if got := one[int64](t, f, `SELECT seq FROM outbox_partitions`); got != passes+11 {
		t.Errorf("the cursor is at %d, want %d: behind the first", got, passes+11)
	}
}

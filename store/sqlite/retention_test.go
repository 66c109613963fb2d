package sqlite

import (
	"testing"
	"time"

	"github.com/onwardhq/onward/store"
)

// drainAll reads and settles until nothing more comes.
func drainAll(t *testing.T, s *Session) (n int) {
	t.Helper()
	for {
		page, err := s.Read(t.Context(), aRoom)
		if err != nil {
			t.Fatal(err)
		}
		var m store.Settlement
		for _, part := range page.Parts {
			m.Done = append(m.Done, store.Done{Partition: part.Partition, Read: page.No, N: len(part.Records)})
			n += len(part.Records)
		}
		if len(m.Done) > 0 {
			if _, err := s.Settle(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		if !page.More {
			return n
		}
	}
}

func retainAll(t *testing.T, s *Store, r store.Retention) (removed int) {
	t.Helper()
	for {
		done, err := s.Retain(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		removed += done.Messages
		if !done.More {
			return removed
		}
	}
}

// What is removed leaves room that later messages take: at a steady rate the file stops growing.
func TestTheFileOfAnOutboxStopsGrowing(t *testing.T) {
	t.Parallel()
	const rounds, each, kept = 30, 100, 5
	f := newOutbox(t)
	s, session := f.joined(t, aRelay())
	var sizes []int
	for range rounds {
		f.fill(t, each)
		if n := drainAll(t, session); n != each {
			t.Fatalf("%d messages came, want %d", n, each)
		}
		f.exec(t, `UPDATE outbox_marks SET at = at - 60000000`) // a minute
		retainAll(t, s, store.Retention{Published: kept * time.Minute})
		sizes = append(sizes, one[int](t, f, `SELECT page_count FROM pragma_page_count()`))
	}
	t.Logf("pages: %v", sizes)
	warm := sizes[3*kept]
	if last := sizes[rounds-1]; last > warm+warm/10 {
		t.Errorf("the file has %d pages after %d rounds, and %d after %d", warm, 3*kept, last, rounds)
	}
	if n := one[int](t, f, `SELECT count(*) FROM outbox_messages`); n < kept*each || n > (kept+2)*each {
		t.Errorf("the log has %d messages, want those of %d rounds of %d", n, kept, each)
	}
}

// Whoever may not say how old a message is cannot have it removed early or kept for ever.
func TestAgeIsWhatTheFileKnowsOfIt(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	s, session := f.joined(t, aRelay())
	for _, at := range []int64{0, 253402300799000000} {
		f.exec(t, `INSERT INTO outbox_messages (topic, type, payload, created_at) VALUES ('a', 'b', 'c', ?)`, at)
	}
	drainAll(t, session)
	day := store.Retention{Published: 24 * time.Hour}
	if n := retainAll(t, s, day); n != 0 {
		t.Errorf("%d messages were removed that have just been written", n)
	}
	f.exec(t, `UPDATE outbox_marks SET at = at - 25 * 3600000000`)
	if n := retainAll(t, s, day); n != 2 {
		t.Errorf("%d messages were removed after 25 hours, want 2", n)
	}
}

// A relay with nothing to remove writes nothing: each write is one that other writers wait for.
func TestRetentionWithNothingToDoWritesNothing(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	s, session := f.joined(t, aRelay())
	f.fill(t, 3)
	drainAll(t, session)
	retainAll(t, s, store.Retention{Published: time.Hour})
	watcher, err := f.db.Conn(t.Context()) // its data_version changes with each commit of another connection
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watcher.Close() })
	version := func() (v int) {
		t.Helper()
		if err := watcher.QueryRowContext(t.Context(), `PRAGMA data_version`).Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	before := version()
	for range 5 {
		retainAll(t, s, store.Retention{Published: time.Hour})
	}
	if after := version(); after != before {
		t.Errorf("the file was written to: version %d, before %d", after, before)
	}
	retainAll(t, s, store.Retention{})
	if version() == before {
		t.Error("removing wrote nothing: this test shows nothing")
	}
}

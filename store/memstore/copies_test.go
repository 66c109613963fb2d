package memstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// copyBench is a database with one relay on it.
type copyBench struct {
	t       *testing.T
	db      *memstore.DB
	session store.Session
	writer  *memstore.Writer
	now     time.Time
}

func newCopyBench(t *testing.T) *copyBench {
	b := &copyBench{t: t, now: time.Unix(1_700_000_000, 0), writer: memstore.NewWriter(memstore.WriterConfig{})}
	b.db = memstore.New(memstore.Config{Partitions: 1, Now: func() time.Time { return b.now }})
	b.session = b.join()
	b.lease()
	return b
}

func (b *copyBench) join() store.Session {
	b.t.Helper()
	id := outbox.NewID()
	s, err := b.db.Open(nil).Join(b.t.Context(), store.Relay{ID: id, Name: id.String(), Lease: time.Minute, Heartbeat: time.Second}, store.Sink{Name: "s"})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *copyBench) lease() store.Lease {
	b.t.Helper()
	l, err := b.session.Renew(b.t.Context(), true)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

func (b *copyBench) write(texts ...string) {
	b.t.Helper()
	tx := b.db.Begin()
	for _, text := range texts {
		if _, err := b.writer.Write(b.t.Context(), tx, outbox.Message{Topic: "t", Type: "T", Key: "k", Payload: []byte(text)}); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *copyBench) read() (page store.Page, texts []string) {
	b.t.Helper()
	page, err := b.session.Read(b.t.Context(), store.Room{Partitions: []int{0}, Messages: 100, Bytes: 1000})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, part := range page.Parts {
		for _, r := range part.Records {
			texts = append(texts, string(r.Payload))
		}
	}
	return page, texts
}

func (b *copyBench) settle(page store.Page, n int, verdicts ...store.Verdict) {
	b.t.Helper()
	if _, err := b.session.Settle(b.t.Context(), store.Settlement{Done: []store.Done{{Read: page.No, N: n}}, Verdicts: verdicts}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *copyBench) want(what string, got, want []string) {
	b.t.Helper()
	if !slices.Equal(got, want) {
		b.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestAPromotedStandbyHasWhatItHadReplayed(t *testing.T) {
	t.Parallel()
	b := newCopyBench(t)
	b.write("a", "b")
	page, texts := b.read()
	b.want("at first", texts, []string{"a", "b"})
	b.settle(page, 1)
	copied := b.db.Backup()
	before := b.lease().Owned[0].Epoch
	b.settle(page, 2)
	b.write("lost")
	open := b.db.Begin()
	b.db.Promote(copied)
	if _, err := b.session.Read(t.Context(), store.Room{}); outbox.CodeOf(err) != store.ErrReload.Code {
		t.Errorf("a read of another server: %v", err)
	}
	if err := open.Commit(); err == nil {
		t.Error("a transaction of the old server was committed")
	}
	b.session.Reset()
	if l := b.lease(); len(l.Owned) != 1 || l.Owned[0].Epoch < before+1000 {
		t.Errorf("%+v, and before epoch %d", l.Owned, before)
	}
	_, texts = b.read()
	b.want("what was not settled when it was replayed", texts, []string{"b"})
	b.write("c")
	_, texts = b.read()
	b.want("then", texts, []string{"c"})
}

func TestALeaseOfAnotherHistoryIsRenewed(t *testing.T) {
	t.Parallel()
	b := newCopyBench(t)
	copied := b.db.Backup()
	b.now = b.now.Add(50 * time.Second)
	b.lease() // for a minute; the copy has ten seconds left
	b.db.Promote(copied)
	b.now = b.now.Add(500 * time.Millisecond)
	b.session.Reset()
	if l := b.lease(); l.Until != b.now.Add(time.Minute) {
		t.Errorf("leased until %s, want a minute from %s", l.Until, b.now)
	}
}

func TestARestoredBackupIsOfAnotherLineage(t *testing.T) {
	t.Parallel()
	b := newCopyBench(t)
	b.write("a", "b", "c")
	page, _ := b.read()
	r := page.Parts[0].Records[0]
	b.settle(page, 1, store.Verdict{Seq: r.Seq, ID: r.ID, Key: r.Key, To: store.Dead, Blocks: true, Attempts: 1})
	lineage, copied := b.lease().Lineage, b.db.Backup()
	act := store.Act{Sink: "s", ID: r.ID, Reason: "test"}
	if err := b.db.Admin().Discard(t.Context(), act); err != nil {
		t.Fatal(err)
	}
	b.settle(page, 3)
	for range 2 { // a backup can be restored more than once
		b.db.Restore(copied)
		b.session.Reset()
		if l := b.lease(); l.Lineage == lineage {
			t.Errorf("the lineage is still %s", lineage)
		}
		_, texts := b.read()
		b.want("what was not settled", texts, []string{"b", "c"})
		if h := b.db.Holding("s", 0); h.Parked != 1 || h.Open != 2 || h.Unread != 0 {
			t.Errorf("%+v, want the dead letter back", h)
		}
	}
	if err := b.db.Admin().Discard(t.Context(), act); err != nil {
		t.Errorf("the dead letter: %v", err)
	}
}

func TestARelayThatJoinedAfterTheBackupIsNotKnown(t *testing.T) {
	t.Parallel()
	b := newCopyBench(t)
	copied := b.db.Backup()
	late := b.join()
	b.db.Promote(copied)
	late.Reset()
	if _, err := late.Renew(t.Context(), true); outbox.CodeOf(err) != store.ErrFenced.Code {
		t.Errorf("%v, want ErrFenced", err)
	}
}

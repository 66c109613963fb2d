package postgres

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"
)

// With a cache, each session of a writer takes numbers ahead and gives them to rows that it writes later. L stands above
// such numbers before they are used: their rows come late, and none is lost or comes twice, also over crashes of the relay. But
// a key that two sessions write to goes out in the order of the numbers, which is not that of its commits: this is why a
// cache is refused.
func TestACachedSequenceLosesNothingButTheOrder(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	g.Exec(t, `ALTER SEQUENCE `+g.Table("messages_seq_seq")+` CACHE 50`)
	writers := make([]*tx, 5) // each with numbers of its own
	for i := range writers {
		writers[i] = g.open()
		writers[i].commit()
	}
	rows, reordered := 0, 0
	for seed := range int64(20) {
		m := newModel(t, fmt.Sprint("seed ", seed))
		m.unordered = true
		g.schedule(rand.New(rand.NewSource(seed)), m, writers) //nolint:gosec // repeatable
		rows, reordered = rows+len(m.rows), reordered+m.reordered
	}
	t.Logf("%d messages were written, and %d times one came before an earlier one of its key", rows, reordered)
	if reordered == 0 {
		t.Error("every key came in order: then a cache need not be refused")
	}
}

// A relay does not start where the sequence has a cache, and says which statement takes it away.
func TestACachedSequenceIsRefused(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 4)
	pool, config := db.As(t, "onward_relay"), Config{Schema: db.Schema, TablePrefix: db.Prefix}
	db.Exec(t, `ALTER SEQUENCE `+db.Table("messages_seq_seq")+` CACHE 50`)
	_, err := Open(t.Context(), pool, config)
	repair := sqlOf(db, `ALTER SEQUENCE outbox_messages_seq_seq CACHE 1;`)
	wantUnsupported(t, "Open", err, "CACHE 50", repair)
	if err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("Open: %v; want it to say what would happen", err)
	}
	db.Exec(t, repair)
	if _, err := Open(t.Context(), pool, config); err != nil {
		t.Errorf("Open after the repair: %v", err)
	}
}

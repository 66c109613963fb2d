package postgres

import (
	"fmt"
	"math/rand"
	"runtime"
	"testing"
	"time"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// One relay can hold very many partitions: it claims them, reads all that waits, settles, is loaded again, shares with others and
// is taken over, without loss and without a statement that grows faster than they do. With nothing to read it asks one question,
// which touches as little as with few of them. ONWARD_TEST_PARTITIONS=16384 is what an outbox may have; the figures are logged.
func TestOneRelayHoldsManyPartitions(t *testing.T) {
	t.Parallel()
	partitions := sizeOf(t, "ONWARD_TEST_PARTITIONS", 1024)
	const messages, window = 5000, 1000
	server := newServer(t) // whose log is nobody else's
	server.start("autovacuum=off")
	g, tr := server.rig(partitions).traced()
	measured := func(what string, f func()) {
		t.Helper()
		began := time.Now()
		f()
		t.Logf("%-34s %s", what, time.Since(began).Round(100*time.Microsecond))
	}
	var s *Session
	measured("join and claim all", func() { s = g.join() })
	tr.know(s)
	if n := len(held(s)); n != partitions {
		t.Fatalf("the relay holds %d partitions of %d", n, partitions)
	}
	g.Exec(t, fmt.Sprintf(`INSERT INTO %s (topic, type, partition_key, payload)
		SELECT 'orders', 'T', 'key-' || g, convert_to(g::text, 'UTF8') FROM generate_series(1, %d) g`, g.Table("messages"), messages))
	var came []string
	tr.take()
	measured("read and settle 5,000 of 5,000 keys", func() { came = g.drain(s) })
	wantTexts(t, "what came", sorted(came), sorted(numbered("", messages)))
	asked, _ := tr.take()
	t.Logf("%d statements", len(asked))
	g.drain(s)
	tr.take()
	g.read(s)
	idle, _ := tr.take()
	if len(idle) != 1 || idle[0].name != "read_window" || g.buffers(idle[0]) > 12 {
		t.Errorf("an idle poll is %v, touching %d buffers", namesOf(idle), g.buffers(idle[0]))
	}
	measured("an idle poll", func() { g.read(s) })
	const settles = 20
	const at = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
	before := pgtest.One[int](t, g.Pool, at)
	began := time.Now()
	for range settles {
		g.settle(s, store.Settlement{})
	}
	t.Logf("%-34s %s, %d bytes of log", "a settle", (time.Since(began) / settles).Round(10*time.Microsecond), (pgtest.One[int](t, g.Pool, at)-before)/settles)
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	t.Logf("%-34s %d KiB of memory, of all", "the session", memory.HeapAlloc>>10)
	measured("reload", func() {
		if err := s.reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	measured("look", func() { g.renew(s) })
	others := []*Session{g.enter(), g.enter()}
	measured("share with two more", func() { g.even(rand.New(rand.NewSource(1)), append(others, s)...) })
	g.write("key-1", "then")
	var then []string
	for _, each := range append(others, s) {
		then = append(then, g.drain(each)...)
	}
	wantTexts(t, "then", then, []string{"then"})
	g.expire(s)
	measured("take over a third", func() { g.renew(others[0]) })
	measured("share it", func() { g.even(rand.New(rand.NewSource(1)), others...) })
	if n := len(held(others[0])) + len(held(others[1])); n != partitions {
		t.Errorf("the two others hold %d partitions of %d", n, partitions)
	}
	g.write("key-2", "in the end")
	then = append(g.drain(others[0]), g.drain(others[1])...)
	wantTexts(t, "in the end", then, []string{"in the end"})
}

package postgres

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/onwardhq/onward/store"
)

// model knows what was written and committed when, and judges what is handed over.
type model struct {
	t       *testing.T
	name    string
	clock   int
	rows    []*modelRow // as written, so in the order of their numbers
	byText  map[string]*modelRow
	history []string
	// unordered: order is counted, not judged.
	unordered bool
	reordered int
}

type modelRow struct {
	text, key          string
	tx                 int
	written, committed int // committed 0: not yet, or never
	given              bool
}

func newModel(t *testing.T, name string) *model {
	return &model{t: t, name: name, byText: map[string]*modelRow{}}
}

func (m *model) write(tx int, key string, texts ...string) {
	for _, text := range texts {
		m.clock++
		r := &modelRow{text: text, key: key, tx: tx, written: m.clock}
		m.rows, m.byText[text] = append(m.rows, r), r
		m.history = append(m.history, "write "+text)
	}
}

func (m *model) commit(tx int) {
	m.clock++
	for _, r := range m.rows {
		if r.tx == tx {
			r.committed = m.clock
		}
	}
	m.history = append(m.history, fmt.Sprint("commit ", tx))
}

// give judges what is handed over: committed, once, and after all of its key that was committed before it was written.
func (m *model) give(texts []string) {
	m.t.Helper()
	m.history = append(m.history, fmt.Sprint("read ", texts))
	for _, text := range texts {
		r := m.byText[text]
		switch {
		case r == nil || r.committed == 0:
			m.t.Fatalf("%s: %s was handed over and is not committed: %v", m.name, text, m.history)
		case r.given:
			m.t.Fatalf("%s: %s was handed over twice: %v", m.name, text, m.history)
		}
		r.given = true
		for _, before := range m.rows {
			if before == r {
				break
			}
			if before.key != r.key || before.given || before.committed == 0 || before.tx != r.tx && before.committed > r.written {
				continue
			}
			if m.reordered++; !m.unordered {
				m.t.Fatalf("%s: %s was handed over before %s: %v", m.name, text, before.text, m.history)
			}
		}
	}
}

// end wants all that was committed to have been handed over.
func (m *model) end() {
	m.t.Helper()
	for _, r := range m.rows {
		if r.committed > 0 && !r.given {
			m.t.Fatalf("%s: %s was committed and never handed over: %v", m.name, r.text, m.history)
		}
	}
}

// writeAll writes messages of these keys in this order, by one statement.
func (x *tx) writeAll(keys, texts []string) {
	x.g.t.Helper()
	x.exec(`INSERT INTO `+x.g.Table("messages")+` (topic, type, partition_key, payload)
		SELECT 'orders', 'OrderPaid', u.key, convert_to(u.text, 'UTF8') FROM unnest($1::text[], $2::text[]) WITH ORDINALITY u(key, text, n) ORDER BY n`, keys, texts)
}

// orders returns every order of a write and a commit of each of n transactions that are alike: they are numbered as they
// begin.
func orders(n int) (all [][]int) {
	var next func(order []int)
	next = func(order []int) {
		if len(order) == 2*n {
			all = append(all, slices.Clone(order))
			return
		}
		begun := 0
		for _, o := range order {
			begun = max(begun, o+1)
		}
		for tx := range min(begun+1, n) {
			if i := slices.Index(order, tx); i < 0 || !slices.Contains(order[i+1:], tx) {
				next(append(order, tx))
			}
		}
	}
	next(nil)
	return all
}

// Three transactions write to two partitions each, in every order of their writes and commits, and between every two
// steps is read: both partitions, one of them (so that their L differ), or neither. Pages are so small that most late
// commits make a late pass.
func TestInterleavingsAcrossPartitions(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join(pages(2))
	txs := []*tx{g.open(), g.open(), g.open()}
	for _, x := range txs {
		x.commit()
	}
	rooms := [][]int{{1, 2}, {1}, {2}, {}}
	every := orders(3)
	if len(every) != 15 {
		t.Fatalf("%d orders of three transactions, want 15", len(every))
	}
	ones, twos := keysIn(1, 4, 60), keysIn(2, 4, 60)
	var read []store.Page // and not settled
	for n := range 4 * len(every) {
		order, turn := every[n/4], n%4
		m := newModel(t, fmt.Sprintf("order %v, rooms from %v", order, rooms[turn]))
		begun := map[int]bool{}
		for step, i := range order {
			if begun[i] {
				txs[i].commit()
				m.commit(i)
			} else {
				begun[i] = true
				txs[i].exec("BEGIN")
				keys, texts := []string{ones[n], twos[n], ones[n], twos[n]}, numbered(fmt.Sprintf("%d/%d.", n, i), 4)
				txs[i].writeAll(keys, texts)
				for k, text := range texts {
					m.write(i, keys[k], text)
				}
			}
			p := g.readOf(s, rooms[(turn+step)%4]...)
			m.give(payloads(p))
			if read = append(read, p); len(read) > n%3 {
				g.settle(s, done(read...))
				read = nil
			}
		}
		g.settle(s, done(read...))
		read = nil
		m.give(g.collect(s, 0, 1, 2, 3))
		m.end()
	}
	wantTexts(t, "after a restart", g.collect(g.crash(s), 0, 1, 2, 3), nil)
}

// Five writers whose transactions overlap, and a reader with small pages: whatever the schedule, nothing is lost, doubled,
// or handed over before what was committed earlier. The seed repeats a schedule.
func TestRandomSchedulesWithSmallPages(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	writers := make([]*tx, 5)
	for i := range writers {
		writers[i] = g.open()
		writers[i].commit()
	}
	for seed := range int64(20) {
		g.schedule(rand.New(rand.NewSource(seed)), newModel(t, fmt.Sprint("seed ", seed)), writers) //nolint:gosec // repeatable
	}
}

func (g *rig) schedule(rnd *rand.Rand, m *model, writers []*tx) {
	g.t.Helper()
	s := g.join(pages(8))
	var read []store.Page
	open := make([]int, len(writers)) // the transaction of each writer; 0: none
	last := 0
	end := func(i int, how string) {
		writers[i].exec(how)
		if how == "COMMIT" {
			m.commit(open[i])
		}
		open[i] = 0
	}
	write := func(i, tx, step int) {
		key := fmt.Sprint(m.name, "/", rnd.Intn(4))
		written := numbered(fmt.Sprintf("%d.%d.", tx, step), 1+rnd.Intn(3)*rnd.Intn(4))
		writers[i].writeAll(slices.Repeat([]string{key}, len(written)), written)
		m.write(tx, key, written...)
	}
	for step := range 70 {
		i := rnd.Intn(len(writers))
		switch n := rnd.Intn(20); {
		case n < 5 && open[i] == 0: // and at once committed
			last++
			write(i, last, step)
			m.commit(last)
		case n < 9 && open[i] == 0:
			last++
			open[i] = last
			writers[i].exec("BEGIN")
		case n < 9:
			write(i, open[i], step)
		case n < 12 && open[i] != 0:
			end(i, []string{"COMMIT", "COMMIT", "COMMIT", "ROLLBACK"}[rnd.Intn(4)])
		case n < 18:
			parts := slices.DeleteFunc([]int{0, 1, 2, 3}, func(int) bool { return rnd.Intn(4) == 0 })
			p, err := s.Read(g.t.Context(), store.Room{Partitions: parts, Messages: 1 + rnd.Intn(16), Bytes: 1 << 20})
			if err != nil {
				g.t.Fatal(err)
			}
			m.give(payloads(p))
			read = append(read, p)
		case len(read) > 0:
			n := 1 + rnd.Intn(len(read))
			g.settle(s, done(read[:n]...))
			read = read[n:]
		case n == 19 && rnd.Intn(4) == 0:
			s = g.crash(s, pages(8))
		}
	}
	for i := range writers {
		if open[i] != 0 {
			end(i, "COMMIT")
		}
	}
	g.settle(s, done(read...))
	m.give(g.collect(s, 0, 1, 2, 3))
	m.end()
	if err := s.Close(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
}

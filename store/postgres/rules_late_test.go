package postgres

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// crash lets the relay of a session fall silent, and returns the session of its successor, which has taken its place.
func (g *rig) crash(s *Session, tune ...func(*store.Relay)) *Session {
	g.t.Helper()
	g.expire(s)
	return g.join(append(tune, func(r *store.Relay) { r.Name = s.member.Name })...)
}

// expire ends the lease of a session's relay.
func (g *rig) expire(s *Session) {
	g.t.Helper()
	g.Exec(g.t, `UPDATE `+g.Table("relays")+` SET leased_until = clock_timestamp() - interval '1 second' WHERE id = $1::text::uuid`, s.member.ID.String())
}

// pair returns two relays that share the partitions, and what each of them holds.
func (g *rig) pair(tune ...func(*store.Relay)) (a, b *Session, ofA, ofB []int) {
	g.t.Helper()
	a, b = g.enter(tune...), g.enter(tune...)
	g.renew(a)
	g.renew(b)
	return a, b, held(a), held(b)
}

func held(s *Session) []int {
	parts := room(s, 1).Partitions
	slices.Sort(parts)
	return parts
}

func (g *rig) setval(seq int64) {
	g.t.Helper()
	g.Exec(g.t, `SELECT setval('`+g.Table("messages_seq_seq")+`', $1)`, seq)
}

// ways are the statements that look for late rows: everything is exhausted, a partition is behind (it is never asked for
// fresh rows), there are more than a page.
var ways = []struct {
	statement string
	partition []int
	rows      int
}{
	{"read_window", []int{0, 1, 2, 3}, 3},
	{"read_shares", []int{1, 2, 3}, 3},
	{"read_page", []int{1, 2, 3}, 20},
}

// onEachWay runs a test of rows that come late in partition 1: hide hides them from a first read, show shows them.
func onEachWay(t *testing.T, test func(g *rig, texts []string) (hide, show func())) {
	for _, w := range ways {
		t.Run(w.statement, func(t *testing.T) {
			t.Parallel()
			g, tr := newRig(t, 4).traced()
			s := g.join(pages(8))
			tr.know(s)
			texts := numbered("late", w.rows)
			hide, show := test(g, texts)
			g.write(keyIn(0, 4), "waits")
			hide()
			g.write(keyIn(1, 4), "early")
			var first []string
			for range 3 {
				first = append(first, g.collect(s, w.partition...)...)
			}
			first = slices.DeleteFunc(first, func(text string) bool { return text == "waits" })
			wantTexts(t, "at first", first, []string{"early"})
			tr.take()
			show()
			wantTexts(t, "when they are there", g.collect(s, w.partition...), texts)
			if asked, _ := tr.take(); !slices.Contains(namesOf(asked), w.statement) {
				t.Errorf("read by %v, want %s", namesOf(asked), w.statement)
			}
			if len(w.partition) < 4 {
				wantTexts(t, "in the end", g.collect(s, 0, 1, 2, 3), []string{"waits"})
			}
			wantTexts(t, "after a restart", g.collect(g.crash(s), 0, 1, 2, 3), nil)
		})
	}
}

// Rows of transactions that were open at S are looked for, though their numbers are below L.
func TestRowsThatWereOpenAreLookedFor(t *testing.T) {
	t.Parallel()
	onEachWay(t, func(g *rig, texts []string) (hide, show func()) {
		x := g.open()
		return func() { x.write(keyIn(1, 4), texts...) }, x.commit
	})
}

// So are rows of transactions that began after S, with numbers below L all the same: a number and a transaction's id are
// drawn one after the other, and a read may fall between.
func TestRowsOfLaterTransactionsBelowLAreLookedFor(t *testing.T) {
	t.Parallel()
	onEachWay(t, func(g *rig, texts []string) (hide, show func()) {
		return func() { g.setval(100) }, func() {
			top := pgtest.One[int64](g.t, g.Pool, `SELECT last_value FROM `+g.Table("messages_seq_seq"))
			g.setval(50)
			g.write(keyIn(1, 4), texts...)
			g.setval(top)
		}
	})
}

// bulk returns an open transaction that wrote n messages to each key, in turn, and commits one to each key behind it.
func (g *rig) bulk(s *Session, keys []string, n int) *tx {
	g.t.Helper()
	x := g.open()
	for i := range n {
		for _, key := range keys {
			x.write(key, fmt.Sprintf("%s/%03d", key, i))
		}
	}
	for _, key := range keys {
		g.write(key, key+"/early")
	}
	if got := g.drain(s); len(got) != len(keys) {
		g.t.Fatalf("before the commit came %v", got)
	}
	return x
}

// wantLate wants the n late messages of each key once, in order, and then others in order.
func wantLate(t *testing.T, got, keys []string, n int, then ...string) {
	t.Helper()
	for _, key := range keys {
		var want []string
		for i := range n {
			want = append(want, fmt.Sprintf("%s/%03d", key, i))
		}
		for _, text := range then {
			want = append(want, key+"/"+text)
		}
		wantTexts(t, key, ofKey(got, key), want)
	}
}

func ofKey(texts []string, key string) (found []string) {
	for _, text := range texts {
		if strings.HasPrefix(text, key+"/") {
			found = append(found, text)
		}
	}
	return found
}

func fourKeys() []string { return []string{keyIn(0, 4), keyIn(1, 4), keyIn(2, 4), keyIn(3, 4)} }

// Nothing fresh comes before a late pass has ended, in any partition that the pass is for.
func TestFreshRowsWaitForALatePass(t *testing.T) {
	t.Parallel()
	g, keys := newRig(t, 4), fourKeys()
	s := g.join(pages(8))
	x := g.bulk(s, keys, 10)
	x.commit()
	for _, key := range keys {
		g.write(key, key+"/fresh")
	}
	var all []string
	for page := range 50 {
		p := g.read(s)
		got := payloads(p)
		if len(got) > 8 {
			t.Errorf("page %d has %d messages, want 8 at most", page, len(got))
		}
		if len(all) < 40 && slices.ContainsFunc(got, func(text string) bool { return strings.HasSuffix(text, "/fresh") }) {
			t.Errorf("page %d, after %d of 40 late messages, has %v", page, len(all), got)
		}
		all = append(all, got...)
		g.settle(s, done(p))
		if !p.More {
			break
		}
	}
	wantLate(t, all, keys, 10, "fresh")
}

// A late pass gives what was visible when it began. What commits meanwhile comes afterwards, and once.
func TestALatePassGivesWhatWasVisibleWhenItBegan(t *testing.T) {
	t.Parallel()
	for name, pagesBefore := range map[string]int{"before the first page": 1, "between pages": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 4)
			s := g.join(pages(8))
			a, b := g.open(), g.open()
			for i := range 30 {
				a.write("a", fmt.Sprint("a", i+1))
				b.write("b", fmt.Sprint("b", i+1))
			}
			g.write("a", "early")
			wantTexts(t, "at first", g.drain(s), []string{"early"})
			a.commit()
			var got []string
			for range pagesBefore {
				p := g.read(s)
				got = append(got, payloads(p)...)
				g.settle(s, done(p))
			}
			if len(got) >= 30 {
				t.Fatalf("the pass is over after %d reads", pagesBefore)
			}
			b.commit()
			got = append(got, g.collect(s, held(s)...)...)
			wantTexts(t, "then", got, append(numbered("a", 30), numbered("b", 30)...))
			wantTexts(t, "in the end", g.drain(s), nil)
		})
	}
}

// A page of a late pass is limited first, and others' rows are dropped from it afterwards; the pass goes on from the last
// row scanned, and ends when less than a page was scanned.
func TestALatePageIsLimitedBeforeOthersRowsAreDropped(t *testing.T) {
	t.Parallel()
	g, keys := newRig(t, 4), fourKeys()
	a, b, ofA, ofB := g.pair(pages(8))
	x := g.open()
	// Runs of one partition longer than a page: there are pages with nothing for the other relay.
	for i := range 40 {
		for _, part := range append(slices.Clone(ofA), ofB...) {
			if i%20 < 10 == slices.Contains(ofA, part) {
				x.write(keys[part], fmt.Sprintf("%s/%03d", keys[part], i))
			}
		}
	}
	for _, key := range keys {
		g.write(key, key+"/early")
	}
	wantTexts(t, "early ones", sorted(append(g.drain(a), g.drain(b)...)), sorted([]string{keys[0] + "/early", keys[1] + "/early", keys[2] + "/early", keys[3] + "/early"}))
	x.commit()
	for _, s := range []*Session{a, b} {
		parts := held(s)
		got := g.collect(s, parts...)
		for _, part := range parts {
			var want []string
			for i := range 40 {
				if i%20 < 10 == slices.Contains(ofA, part) {
					want = append(want, fmt.Sprintf("%s/%03d", keys[part], i))
				}
			}
			wantTexts(t, keys[part], ofKey(got, keys[part]), want)
		}
		if len(got) != 40 {
			t.Errorf("%d messages came, want 40", len(got))
		}
	}
}

func sorted(texts []string) []string {
	slices.Sort(texts)
	return texts
}

// Rows above a partition's own L are not late there, though another partition's L is above them: they come as fresh ones.
func TestALatePassLeavesRowsAboveAPartitionsOwnL(t *testing.T) {
	t.Parallel()
	g, keys := newRig(t, 4), fourKeys()
	s := g.join(pages(8))
	g.write(keys[0], "waits") // and holds L of partition 0 down
	x := g.open()
	for i := range 20 {
		x.write(keys[0], fmt.Sprintf("%s/%03d", keys[0], i))
		x.write(keys[1], fmt.Sprintf("%s/%03d", keys[1], i))
	}
	g.write(keys[1], "early")
	wantTexts(t, "at first", slices.DeleteFunc(g.collect(s, 1, 2, 3), func(text string) bool { return text == "waits" }), []string{"early"})
	x.commit()
	got := g.collect(s, 1, 2, 3)
	wantLate(t, got, keys[1:2], 20)
	if len(got) != 20 {
		t.Errorf("%d messages came in the pass, want 20", len(got))
	}
	wantTexts(t, "fresh ones", g.collect(s, 0, 1, 2, 3), append([]string{"waits"}, ofKeyIn(keys[0], 20)...))
}

func ofKeyIn(key string, n int) (texts []string) {
	for i := range n {
		texts = append(texts, fmt.Sprintf("%s/%03d", key, i))
	}
	return texts
}

// Late rows have a bound of bytes too: more make a late pass, whose pages are cut there, but for a row that is larger
// alone.
func TestLateRowsOverTheBytesMakeALatePass(t *testing.T) {
	t.Parallel()
	for name, parts := range map[string][]int{"window": {0, 1, 2, 3}, "shares": {1, 2, 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 4)
			s := g.join(func(r *store.Relay) { r.PageBytes = 1000 })
			sizes := []int{400, 400, 400, 3000, 400, 600, 1}
			x := g.open()
			for i, size := range sizes {
				x.write(keyIn(1, 4), strconv.Itoa(i)+strings.Repeat("x", size-1))
			}
			g.write(keyIn(0, 4), "waits")
			g.write(keyIn(1, 4), "early")
			g.collect(s, parts...)
			x.commit()
			var got [][]int
			for range 20 {
				p := g.readOf(s, parts...)
				g.settle(s, done(p))
				var page []int
				for _, text := range payloads(p) {
					page = append(page, len(text))
				}
				if len(page) > 0 {
					got = append(got, page)
				}
				if !p.More {
					break
				}
			}
			if fmt.Sprint(got) != "[[400 400] [400] [3000] [400 600] [1]]" {
				t.Errorf("pages of %v bytes", got)
			}
		})
	}
}

// A partition that was claimed has the snapshot of its last owner: its late rows are looked for by that, not by the one
// that the relay's other partitions have reached.
func TestPartitionsWithAnotherSnapshotAreReadByTheirOwn(t *testing.T) {
	t.Parallel()
	g, tr := newRig(t, 4).traced()
	s := g.join()
	tr.know(s)
	x := g.open()
	x.write(keyIn(1, 4), "late")
	g.write(keyIn(1, 4), "early")
	wantTexts(t, "at first", g.drain(s), []string{"early"})
	if err := s.GiveBack(t.Context(), []int{1}); err != nil {
		t.Fatal(err)
	}
	x.commit()
	g.write(keyIn(2, 4), "meanwhile")
	wantTexts(t, "without it", g.collect(s, 0, 2, 3), []string{"meanwhile"})
	g.renew(s)
	tr.take()
	p := g.read(s)
	wantTexts(t, "with it again", payloads(p), []string{"late"})
	asked, _ := tr.take()
	if last := asked[len(asked)-1]; last.name != "read_shares" || len(last.args[1].([]string)) != 2 {
		t.Errorf("read by %v with %d snapshots, want both in one statement", last.name, len(last.args[1].([]string)))
	}
	g.settle(s, done(p))
	g.drain(s)
	tr.take()
	g.drain(s)
	if asked, _ := tr.take(); asked[0].name != "read_window" {
		t.Errorf("then read by %v, want a window: one snapshot serves all", namesOf(asked))
	}
}

// Whoever takes a partition over in the middle of a late pass goes on where the pass stands, and gives nothing fresh of it
// before the pass has ended.
func TestALatePassIsTakenOverWhereItStands(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"taken over", "given back"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			g, keys := newRig(t, 4), fourKeys()
			a, b, ofA, ofB := g.pair(pages(8))
			x := g.open()
			for i := range 20 {
				for _, key := range keys {
					x.write(key, fmt.Sprintf("%s/%03d", key, i))
				}
			}
			for _, key := range keys {
				g.write(key, key+"/early")
			}
			g.drain(a)
			g.drain(b)
			x.commit()
			got := g.collect(b, ofB...)
			for range 4 { // one that finds too many, and three pages
				p := g.read(a)
				got = append(got, payloads(p)...)
				g.settle(a, done(p))
			}
			for _, part := range ofA {
				g.write(keys[part], keys[part]+"/fresh")
			}
			if how == "taken over" {
				g.expire(a)
			} else if err := a.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			g.renew(b)
			g.renew(b)
			if n := len(held(b)); n != 4 {
				t.Fatalf("the other relay holds %d partitions, want 4", n)
			}
			got = append(got, g.collect(b, 0, 1, 2, 3)...)
			for part, key := range keys {
				if slices.Contains(ofA, part) {
					wantLate(t, got, []string{key}, 20, "fresh")
				} else {
					wantLate(t, got, []string{key}, 20)
				}
			}
		})
	}
}

// After a crash inside a late pass nothing is lost, and no more comes again than what was read and not settled.
func TestACrashInsideALatePassRepeatsWhatWasNotSettled(t *testing.T) {
	t.Parallel()
	for name, partitions := range map[string]int{"one partition": 1, "four": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, keys := newRig(t, 4), fourKeys()[:partitions]
			s := g.join(pages(8))
			g.bulk(s, keys, 40/partitions).commit()
			g.read(s) // finds too many
			var first []string
			settled := 0
			for page := range 4 {
				p := g.read(s)
				first = append(first, payloads(p)...)
				switch page {
				case 0:
					g.settle(s, done(p))
					settled = len(payloads(p))
				case 1: // three of it, in the order of their numbers
					part := p.Parts[0]
					if partitions == 1 {
						g.settle(s, store.Settlement{Done: []store.Done{{Partition: part.Partition, Read: p.No, N: 3}}, Published: 3})
						settled += 3
					} else {
						g.settle(s, store.Settlement{Done: []store.Done{{Partition: part.Partition, Read: p.No, N: 1}}, Published: 1})
					}
				}
			}
			heir := g.crash(s, pages(8))
			again := g.collect(heir, 0, 1, 2, 3)
			for _, text := range again {
				if slices.Contains(first[:settled], text) {
					t.Errorf("%s was settled and came again", text)
				}
			}
			if most := 40 - settled; len(again) > most || partitions == 1 && len(again) < most {
				t.Errorf("%d messages came after the crash, want %d", len(again), most)
			}
			seen := map[string]bool{}
			var all []string
			for _, text := range append(slices.Clone(first), again...) {
				if !seen[text] {
					all = append(all, text)
				}
				seen[text] = true
			}
			wantLate(t, all, keys, 40/partitions)
		})
	}
}

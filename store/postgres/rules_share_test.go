package postgres

import (
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"

	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The rules of fair shares.

// even lets relays renew and give back, in any order, until each holds its share and no more.
func (g *rig) even(order *rand.Rand, relays ...*Session) {
	g.t.Helper()
	for range 50 {
		even := true
		order.Shuffle(len(relays), func(i, j int) { relays[i], relays[j] = relays[j], relays[i] })
		total := 0
		for _, s := range relays {
			l := g.renew(s)
			total += len(l.Owned)
			if l.Surplus == 0 {
				continue
			}
			even = false
			parts := held(s)
			order.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
			if err := s.GiveBack(g.t.Context(), parts[:l.Surplus]); err != nil {
				g.t.Fatal(err)
			}
		}
		if even && total == g.partitions() {
			return
		}
	}
	g.t.Fatal("the shares do not get even")
}

func (g *rig) partitions() int {
	g.t.Helper()
	return pgtest.One[int](g.t, g.Pool, `SELECT count(*) FROM `+g.Table("partitions"))
}

// wantShares: each partition has one owner, and everybody has as many as any other, or one more.
func (g *rig) wantShares(relays ...*Session) {
	g.t.Helper()
	owned := map[int]bool{}
	for _, s := range relays {
		n := len(held(s))
		if least := g.partitions() / len(relays); n != least && n != least+1 {
			g.t.Errorf("a relay of %d holds %d of %d partitions", len(relays), n, g.partitions())
		}
		for _, part := range held(s) {
			if owned[part] {
				g.t.Errorf("partition %d has two owners", part)
			}
			owned[part] = true
		}
	}
	if len(owned) != g.partitions() {
		g.t.Errorf("%d of %d partitions are served", len(owned), g.partitions())
	}
	g.wantNoOrphans()
}

func seeded(seed int64) *rand.Rand {
	return rand.New(rand.NewSource(seed)) //nolint:gosec // seeded on purpose
}

// Relays that race for the partitions of one that has died get exactly their shares, and each partition has one owner.
func TestManyRelaysRaceForExpiredPartitions(t *testing.T) {
	t.Parallel()
	const partitions, relays = 64, 32
	g := newRig(t, partitions)
	dead := g.join()
	if n := len(held(dead)); n != partitions {
		t.Fatalf("the first holds %d", n)
	}
	sessions := make([]*Session, relays)
	for i := range sessions {
		sessions[i] = g.enter()
	}
	g.expire(dead)
	var wg sync.WaitGroup
	for _, s := range sessions {
		asleep(s)
		wg.Go(func() {
			for range 100 {
				l, err := s.Renew(t.Context(), true)
				if err != nil || l.Surplus > 0 {
					t.Errorf("%v, surplus %d", err, l.Surplus)
					return
				}
				if len(l.Owned) == partitions/relays {
					return
				}
			}
			t.Error("it does not get its share")
		})
	}
	wg.Wait()
	g.wantShares(sessions...)
	for part, epoch := range g.epochs() {
		if epoch != 2 {
			t.Errorf("partition %d has epoch %d: it had more owners than two", part, epoch)
		}
	}
}

// A relay more than there are partitions holds nothing, and asks the log nothing, until somebody leaves.
func TestARelayTooManyReadsNothing(t *testing.T) {
	t.Parallel()
	const partitions = 64
	g, tr := newRig(t, partitions).traced()
	var relays []*Session
	for range partitions + 1 {
		relays = append(relays, g.enter())
	}
	tr.know(relays[0])
	g.even(seeded(1), relays...)
	idle := slices.IndexFunc(relays, func(s *Session) bool { return len(held(s)) == 0 })
	if idle < 0 {
		t.Fatal("every relay holds something")
	}
	for part := range partitions {
		g.write(keyIn(part, partitions), "x")
	}
	tr.take()
	for range 3 {
		if p := g.read(relays[idle]); p.More || len(p.Parts) > 0 {
			t.Errorf("it read %v, more: %v", payloads(p), p.More)
		}
	}
	if asked, batches := tr.take(); batches > 0 {
		t.Errorf("it asked %v", namesOf(asked))
	}
	leaver := (idle + 1) % len(relays)
	if err := relays[leaver].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := g.renew(relays[idle]); len(l.Owned) != 1 {
		t.Fatalf("somebody has left, and it holds %v", l.Owned)
	}
	wantTexts(t, "then", g.drain(relays[idle]), []string{"x"})
}

func (g *rig) epochs() map[int]int64 {
	g.t.Helper()
	epochs := map[int]int64{}
	for part, epoch := range pgtest.All[int64](g.t, g.Pool, `SELECT epoch FROM `+g.Table("partitions")+` ORDER BY partition_id`) {
		epochs[part] = epoch
	}
	return epochs
}

// Whoever joins or leaves, exactly its share moves, and nothing of that twice.
func TestAJoinOrLeaveMovesExactlyOneShare(t *testing.T) {
	t.Parallel()
	for seed := range int64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := seeded(seed)
			g := newRig(t, 16)
			relays := []*Session{g.join()}
			for range 16 {
				before := g.epochs()
				var what string
				var share []int
				if len(relays) == 1 || len(relays) < 12 && random.Intn(4) < 3 {
					newcomer := g.enter()
					relays = append(relays, newcomer)
					g.even(random, relays...)
					what, share = "joins", held(newcomer)
				} else {
					i := random.Intn(len(relays))
					leaver := relays[i]
					what, share = "leaves", held(leaver)
					if err := leaver.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
					relays = slices.Delete(relays, i, i+1)
					g.even(random, relays...)
				}
				g.wantShares(relays...)
				var moved []int
				for part, epoch := range g.epochs() {
					if epoch != before[part] {
						moved = append(moved, part)
					}
					if epoch > before[part]+1 {
						t.Errorf("one of %d %s, and partition %d moves %d times", len(relays), what, part, epoch-before[part])
					}
				}
				slices.Sort(moved)
				if !slices.Equal(moved, share) {
					t.Errorf("one of %d %s with %v, and %v move", len(relays), what, share, moved)
				}
			}
		})
	}
}

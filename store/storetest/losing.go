package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/store"
)

var losing = []spec{
	{"SettleRefusesAStaleEpoch", settleRefusesStale},
	{"AStaleVerdictOnAParkedMessageChangesNothing", staleVerdictOnParked},
	{"GiveBackRefusesAStaleEpoch", giveBackRefusesStale},
	{"CloseRefusesAStaleEpoch", closeRefusesStale},
	{"ARelayThatNobodyReplacedGoesOn", sleeperGoesOn},
	{"TakenOverPartitionsHaveHigherEpochs", higherEpochs},
	{"OneRelayTakesOverEachPartition", oneTakesOver},
	{"ASilentRelayLosesItsShareOnly", silentLosesShare},
	{"OneRelaysSettleLeavesAnothersReadsAlone", settleLeavesOthers},
}

// overtaken is a relay that read five messages, settled one, and was taken over.
func (s *suite) overtaken() (stale, next *relay, ts []taken) {
	s.Helper()
	stale = s.join(s.short()).holdAll()
	s.sendNamed("k", "a", "b", "c", "d", "e")
	ts = stale.drain()
	stale.settle(ts[:1])
	return stale, stale.successor(), ts
}

// wantUntouched wants what a stale relay did to have had no effect.
func (s *suite) wantUntouched(next *relay) {
	s.Helper()
	var got []string
	for _, t := range next.drain() {
		if t.name() != "a" { // the read that it belongs to was in flight
			got = append(got, t.name())
		}
		s.want(t.name()+" is blocked", t.Blocked, false)
	}
	s.want("what the next owner reads", got, []string{"b", "c", "d", "e"})
	k := s.sink()
	s.want("parked and dead", []any{len(k.Parked), k.Dead}, []any{0, 0})
	next.settleAll()
	s.want("heads", len(next.heads().Due), 0)
	next.close()
	s.want("after a restart", names(next.successor().drain()), []string(nil))
}

func settleRefusesStale(s *suite) {
	stale, next, ts := s.overtaken()
	_, err := stale.session.Settle(s.ctx, store.Settlement{
		Done:      upTo(ts...),
		Verdicts:  []store.Verdict{fromLog(ts[2], retryIn(0, 1)), fromLog(ts[3], behind()), fromLog(ts[4], dies(true, 1))},
		Published: 5,
	})
	s.wantError("settle", err, store.ErrFenced, store.ErrReload)
	s.wantVoid(stale)
	s.want("published", s.sink().Published, 1)
	s.wantUntouched(next)
}

// A relay that was taken over knows parked rows, and gives each kind of verdict on one: none has an effect.
func staleVerdictOnParked(s *suite) {
	stale := s.join(s.short()).holdAll()
	for _, key := range []string{"out", "again", "dies"} {
		s.sendNamed(key, key, key+" behind")
		stale.park(0)
	}
	heads := stale.heads().Due
	next := stale.successor()
	look := func() (all []string) {
		for _, key := range []string{"out", "again", "dies"} {
			for _, p := range next.followers(key, store.Place{}) {
				all = append(all, fmt.Sprintf("%s %s %d", p.Payload, p.Reason, p.Attempts))
			}
		}
		return append(all, fmt.Sprint(parkedNames(next.heads().Due), s.sink().Dead))
	}
	before := look()
	verdicts := map[string]store.Verdict{"out": out(), "again": retryIn(time.Hour, 2), "dies": dies(true, 2)}
	var given []store.Verdict
	for _, p := range heads {
		given = append(given, fromParked(p, verdicts[p.Key]))
	}
	s.want("heads", len(given), 3)
	_, err := stale.session.Settle(s.ctx, store.Settlement{Verdicts: given})
	s.wantError("settle", err, store.ErrFenced, store.ErrReload)
	s.want("what is parked and dead", look(), before)
	for _, p := range next.heads().Due { // the stale one's second attempt was none
		if p.Key != "again" {
			continue
		}
		next.settle(nil, fromParked(p, dies(true, 2)))
		list, err := s.Admin.Dead(s.ctx, store.Filter{ID: p.ID})
		s.ok(err, "dead")
		var tries []string
		for _, a := range list.Dead[0].Tries {
			tries = append(tries, a.Outcome)
		}
		s.want("attempts", tries, []string{"retry", "rejected"})
	}
}

func giveBackRefusesStale(s *suite) {
	stale, next, _ := s.overtaken()
	s.wantError("give back", stale.session.GiveBack(s.ctx, stale.held()), store.ErrFenced, store.ErrReload)
	s.want("partitions of the next owner", len(next.renew().Owned), s.partitions)
	s.wantVoid(stale)
	s.wantUntouched(next)
}

func closeRefusesStale(s *suite) {
	stale, next, _ := s.overtaken()
	_ = stale.session.Close(s.ctx) // it has nothing to give back
	s.want("partitions of the next owner", len(next.renew().Owned), s.partitions)
	s.wantFenced(stale)
	s.wantUntouched(next)
}

func sleeperGoesOn(s *suite) {
	r := s.join(s.short()).holdAll()
	s.sendNamed("k", "a", "b")
	ts := r.drain()
	s.until("its lease is over", func() bool {
		all, err := s.Admin.Relays(s.ctx)
		s.ok(err, "relays")
		return len(all) == 1 && !all[0].Live
	})
	r.settle(ts[:1])
	s.want("partitions", len(r.renew().Owned), s.partitions)
	r.settle(ts[1:])
	s.want("again", names(r.drain()), []string(nil))
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string(nil))
}

func higherEpochs(s *suite) {
	stale, next, _ := s.overtaken()
	for _, o := range next.lease.Owned {
		if o.Epoch <= stale.epoch(o.Partition) {
			s.Errorf("partition %d has epoch %d after %d", o.Partition, o.Epoch, stale.epoch(o.Partition))
		}
	}
	page, _ := next.page(next.room())
	for _, part := range page.Parts {
		s.want("epoch in a page", part.Epoch, next.epoch(part.Partition))
	}
}

func oneTakesOver(s *suite) {
	for i := range 2 * s.partitions {
		s.sendNamed(fmt.Sprintf("key-%d", i), fmt.Sprintf("%03d", i))
	}
	var victims []*relay // made one after the other and at once: their leases are short
	for range 2 {
		v := s.join(s.short())
		v.renew()
		victims = append(victims, v)
	}
	relays := []*relay{s.join(s.long()), s.join(s.long()), s.join(s.long())}
	s.until("those who held nothing are taken over as well", func() bool {
		relays[0].renew()
		all, err := s.Admin.Relays(s.ctx)
		s.ok(err, "relays")
		return len(all) == len(relays)
	})
	s.even(relays...)
	s.want("partitions with an owner", len(s.owners(relays...)), s.partitions)
	seen := map[string]int{}
	for _, r := range relays {
		for _, t := range r.drain() {
			seen[t.name()]++
		}
	}
	s.want("different messages", len(seen), 2*s.partitions)
	for name, n := range seen {
		if n != 1 {
			s.Errorf("%s came %d times", name, n)
		}
	}
	for _, v := range victims {
		s.wantVoid(v)
	}
}

func silentLosesShare(s *suite) {
	if s.partitions < 2 {
		s.lacks("two partitions")
		return
	}
	silent, stays := s.join(s.short()), s.join(s.long())
	s.until("both hold their share", func() bool {
		for _, r := range []*relay{silent, stays} {
			if lease := r.renew(); lease.Surplus > 0 {
				r.giveBack(r.held()[:lease.Surplus]...)
			}
		}
		return len(silent.lease.Owned) == s.partitions/2 && len(stays.lease.Owned) == s.partitions/2
	})
	before := map[int]int64{}
	for _, o := range stays.lease.Owned {
		before[o.Partition] = o.Epoch
	}
	for i := range s.partitions {
		s.sendNamed(fmt.Sprintf("key-%d", i), fmt.Sprint(i))
	}
	mine := stays.drain()
	stays.holdAll()
	for p, epoch := range before {
		s.want(fmt.Sprintf("epoch of partition %d, which never moved", p), stays.epoch(p), epoch)
	}
	s.want("messages", len(mine)+len(stays.drain()), s.partitions)
	stays.settleAll()
	_, err := silent.session.Settle(s.ctx, store.Settlement{})
	if !errors.Is(err, store.ErrFenced) && !errors.Is(err, store.ErrReload) {
		s.Errorf("settle of the silent one: %v", err)
	}
	s.wantVoid(silent)
}

func settleLeavesOthers(s *suite) {
	if s.partitions < 2 {
		s.lacks("two partitions")
		return
	}
	silent, busy := s.join(s.short()), s.join(s.long())
	s.until("both hold something", func() bool {
		for _, r := range []*relay{silent, busy} {
			if lease := r.renew(); lease.Surplus > 0 {
				r.giveBack(r.held()[:lease.Surplus]...)
			}
		}
		return len(silent.lease.Owned) > 0 && len(busy.lease.Owned) > 0
	})
	var want []string
	for i := range 2 * s.partitions {
		s.sendNamed(fmt.Sprintf("key-%d", i), fmt.Sprintf("%03d", i))
	}
	for _, t := range silent.drain() {
		want = append(want, t.name())
	}
	for i := range 5 { // its reads have numbers beyond those of the silent one
		busy.drain()
		busy.settleAll()
		s.sendNamed(fmt.Sprintf("key-%d", i), "more")
	}
	var got []string
	for _, t := range busy.holdAll().drain() {
		if t.name() != "more" {
			got = append(got, t.name())
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	s.want("what the silent one had read", got, want)
}

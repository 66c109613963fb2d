package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/store"
)

var joining = []spec{
	{"InfoNamesTheDatabase", infoNamesTheDatabase},
	{"TheFirstRelayHoldsEveryPartition", firstHoldsAll},
	{"LeaseEndsByTheCallersClock", leaseEnds},
	{"RenewWithoutTakeClaimsNothing", renewWithoutTake},
	{"ALiveNameIsTaken", liveNameIsTaken},
	{"AnExpiredNameIsTakenOver", expiredNameIsTakenOver},
	{"ANewSinkBeginsAtTheBeginning", newSinkBegins},
	{"SinksDoNotTouchEachOther", sinksApart},
	{"RelaysShareFairly", relaysShare},
	{"JoiningMovesTheNewcomersShareAndNothingElse", joiningMovesShare},
	{"LeavingMovesTheLeaversShareAndNothingElse", leavingMovesShare},
	{"NoPartitionHasTwoOwners", noTwoOwners},
	{"ARelayWithoutPartitionsReadsNothing", emptyHanded},
	{"RelaysAreListed", relaysListed},
	{"CloseEndsTheSession", closeEnds},
}

func infoNamesTheDatabase(s *suite) {
	info, err := s.open().Info(s.ctx)
	s.ok(err, "info")
	if info.Database == "" || info.Schema < 1 || info.Lineage == "" || info.Partitions < 1 || info.Partitions&(info.Partitions-1) != 0 {
		s.Errorf("incomplete: %+v", info)
	}
}

func firstHoldsAll(s *suite) {
	r := s.alone()
	seen := map[int]bool{}
	for _, o := range r.lease.Owned {
		if o.Partition < 0 || o.Partition >= s.partitions || seen[o.Partition] || o.Epoch < 1 {
			s.Errorf("%+v is no partition of %d, comes twice, or has no epoch", o, s.partitions)
		}
		seen[o.Partition] = true
	}
	s.want("surplus", r.lease.Surplus, 0)
	s.want("relays", r.lease.Relays, 1)
	s.want("partitions owned by status", s.sink().PartitionsOwned, s.partitions)
}

func leaseEnds(s *suite) {
	before := time.Now()
	r := s.alone()
	if s.Advance != nil {
		return // a clock that the test moves has no after
	}
	if early, late := before.Add(r.as.Lease), time.Now().Add(r.as.Lease); r.lease.Until.Before(early) || r.lease.Until.After(late) {
		s.Errorf("lease until %s, want from %s to %s", r.lease.Until, early, late)
	}
	first := r.lease.Until
	s.until("renewal moves the end of the lease", func() bool { return r.renew().Until.After(first) })
}

func renewWithoutTake(s *suite) {
	r := s.join(s.long())
	lease, err := r.session.Renew(s.ctx, false)
	s.ok(err, "renew")
	s.want("partitions", len(lease.Owned), 0)
	r.holdAll()
	lease, err = r.session.Renew(s.ctx, false)
	s.ok(err, "renew")
	s.want("partitions of a renewal without take", len(lease.Owned), s.partitions)
}

func liveNameIsTaken(s *suite) {
	first := s.alone()
	second := s.long()
	second.Name = first.as.Name
	_, err := s.open().Join(s.ctx, second, store.Sink{Name: sinkName})
	s.wantError("join", err, store.ErrNameTaken)
	var taken *store.NameTaken
	if !errors.As(err, &taken) || taken.Name != second.Name || taken.Host != first.as.Host || taken.PID != first.as.PID {
		s.Fatalf("got %+v, want a NameTaken that names the relay", err)
	}
	if taken.Until <= 0 || taken.Until > first.as.Lease {
		s.Errorf("its lease ends in %s, want at most %s", taken.Until, first.as.Lease)
	}
	s.want("partitions of the first", len(first.renew().Owned), s.partitions)
	first.close()
	s.joinOn(s.open(), second, sinkName).holdAll()
}

func expiredNameIsTakenOver(s *suite) {
	first := s.join(s.short()).holdAll()
	s.sendNamed("k", "a")
	first.settle(first.drain())
	s.sendNamed("k", "b")
	first.drain()
	as := s.long()
	as.Name = first.as.Name
	st := s.open()
	var session store.Session
	s.until("the name is free", func() (ok bool) {
		var err error
		if session, err = st.Join(s.ctx, as, store.Sink{Name: sinkName}); err != nil {
			s.wantError("join", err, store.ErrNameTaken)
		}
		return err == nil
	})
	second := (&relay{s: s, store: st, session: session, as: as}).holdAll()
	s.want("what is left", names(second.drain()), []string{"b"})
	for _, o := range second.lease.Owned {
		if old := first.epoch(o.Partition); o.Epoch <= old {
			s.Errorf("partition %d has epoch %d after %d", o.Partition, o.Epoch, old)
		}
	}
	s.wantVoid(first)
}

func newSinkBegins(s *suite) {
	s.sendNamed("k", "a", "b", "c")
	r := s.alone()
	s.want("first sink", names(r.drain()), []string{"a", "b", "c"})
	r.settleAll()
	late := s.joinOn(s.open(), s.long(), "audit").holdAll()
	s.want("second sink", names(late.drain()), []string{"a", "b", "c"})
}

func sinksApart(s *suite) {
	orders, audit := s.alone(), s.joinOn(s.open(), s.long(), "audit").holdAll()
	s.want("partitions of the first sink", len(orders.renew().Owned), s.partitions)
	receipts := s.sendNamed("k", "a", "b")
	a := orders.drain()
	orders.settle(a[:1], fromLog(a[0], dies(true, 1)))
	b := audit.drain()
	s.want("second sink", names(b), []string{"a", "b"})
	for _, t := range b {
		s.want(t.name()+" is blocked", t.Blocked, false)
	}
	audit.settleAll()
	s.wantState("a", receipts[0], store.StateDead)
	got, err := s.Tracker.State(s.ctx, "audit", receipts[0])
	s.ok(err, "state")
	s.want("state in the second sink", got, store.StatePublished)
}

// even lets relays renew and give back until they hold their shares.
func (s *suite) even(relays ...*relay) {
	s.Helper()
	s.until("fair shares", func() bool {
		even := true
		total := 0
		for _, r := range relays {
			if lease := r.renew(); lease.Surplus > 0 {
				r.giveBack(r.held()[:lease.Surplus]...)
				even = false
			}
			even = even && r.lease.Relays == len(relays)
			total += len(r.lease.Owned)
		}
		return even && total == s.partitions
	})
	for _, r := range relays {
		if n := len(r.lease.Owned); n != s.partitions/len(relays) && n != s.partitions/len(relays)+1 {
			s.Errorf("%s holds %d of %d partitions among %d relays", r.as.Name, n, s.partitions, len(relays))
		}
	}
}

// owners says who holds what, and wants one owner for each.
func (s *suite) owners(relays ...*relay) map[int]string {
	s.Helper()
	owners := map[int]string{}
	for _, r := range relays {
		for _, o := range r.lease.Owned {
			if other := owners[o.Partition]; other != "" {
				s.Errorf("partition %d is held by %s and %s", o.Partition, other, r.as.Name)
			}
			owners[o.Partition] = r.as.Name
		}
	}
	return owners
}

func relaysShare(s *suite) {
	var relays []*relay
	for n := 1; n <= 5; n++ {
		relays = append(relays, s.join(s.long()))
		s.even(relays...)
		s.owners(relays...)
	}
}

// moved counts the partitions whose owner is another one now.
func moved(before, after map[int]string) (n int) {
	for p, owner := range after {
		if before[p] != owner {
			n++
		}
	}
	return n
}

func joiningMovesShare(s *suite) {
	relays := []*relay{s.join(s.long()), s.join(s.long()), s.join(s.long())}
	s.even(relays...)
	before := s.owners(relays...)
	newcomer := s.join(s.long())
	s.even(append(relays, newcomer)...)
	after := s.owners(append(relays, newcomer)...)
	s.want("partitions moved", moved(before, after), len(newcomer.lease.Owned))
}

func leavingMovesShare(s *suite) {
	relays := []*relay{s.join(s.long()), s.join(s.long()), s.join(s.long()), s.join(s.long())}
	s.even(relays...)
	before := s.owners(relays...)
	leaver := relays[2]
	leaver.close()
	rest := append(relays[:2:2], relays[3])
	s.even(rest...)
	s.want("partitions moved", moved(before, s.owners(rest...)), len(leaver.lease.Owned))
}

func noTwoOwners(s *suite) {
	epochs := map[int]int64{}
	holders := map[int]string{}
	look := func(r *relay) {
		for _, o := range r.lease.Owned {
			if o.Epoch < epochs[o.Partition] || o.Epoch == epochs[o.Partition] && holders[o.Partition] != r.as.Name {
				s.Errorf("%s holds partition %d at epoch %d; %s had epoch %d", r.as.Name, o.Partition, o.Epoch, holders[o.Partition], epochs[o.Partition])
			}
			epochs[o.Partition], holders[o.Partition] = o.Epoch, r.as.Name
		}
	}
	var relays []*relay
	for i := range 6 {
		if i > 3 {
			relays[0].close()
			relays = relays[1:]
		}
		relays = append(relays, s.join(s.long()))
		for range 4 {
			for _, r := range relays {
				if lease := r.renew(); lease.Surplus > 0 {
					look(r)
					r.giveBack(r.held()[:lease.Surplus]...)
				}
				look(r)
			}
			s.owners(relays...)
		}
	}
	s.even(relays...)
}

func emptyHanded(s *suite) {
	if s.partitions > 64 {
		s.lacks("a relay more than there are partitions: they are too many")
		return
	}
	st := s.open()
	var relays []*relay
	for range s.partitions + 1 {
		relays = append(relays, s.joinOn(st, s.long(), sinkName))
	}
	s.even(relays...)
	s.want("partitions with an owner", len(s.owners(relays...)), s.partitions)
	for i := range 2 * s.partitions {
		s.sendNamed(fmt.Sprintf("key-%d", i), "m")
	}
	read := 0
	for _, r := range relays {
		all := make([]int, s.partitions) // whatever is asked for, nothing but what is held is read
		for i := range all {
			all[i] = i
		}
		_, ts := r.page(store.Room{Partitions: all, Messages: 2048, Bytes: 16 << 20})
		for _, t := range ts {
			if !slices.Contains(r.held(), t.Partition) {
				s.Errorf("%s read of partition %d, which it does not hold", r.as.Name, t.Partition)
			}
		}
		read += len(ts)
	}
	s.want("messages read by all", read, 2*s.partitions)
}

func relaysListed(s *suite) {
	r := s.alone()
	all, err := s.Admin.Relays(s.ctx)
	s.ok(err, "relays")
	if len(all) != 1 {
		s.Fatalf("%d relays are listed, want 1", len(all))
	}
	i := all[0]
	got := store.RelayInfo{ID: i.ID, Name: i.Name, Host: i.Host, Version: i.Version, PID: i.PID, Sinks: i.Sinks, Partitions: i.Partitions, Live: i.Live, Lease: i.Lease}
	s.want("relay", got, store.RelayInfo{
		ID: r.as.ID, Name: r.as.Name, Host: r.as.Host, Version: r.as.Version, PID: r.as.PID, Sinks: []string{sinkName},
		Partitions: s.partitions, Live: true, Lease: r.as.Lease,
	})
	if i.StartedAt.IsZero() || i.HeartbeatAt.Before(i.StartedAt) || !i.LeasedUntil.After(i.HeartbeatAt) {
		s.Errorf("times out of order: %+v", i)
	}
	parts, err := s.Admin.Partitions(s.ctx, sinkName)
	s.ok(err, "partitions")
	s.want("partitions listed", len(parts), s.partitions)
	for _, p := range parts {
		if p.Relay != r.as.Name || p.Epoch != r.epoch(p.Partition) {
			s.Errorf("partition %+v, want relay %s and epoch %d", p, r.as.Name, r.epoch(p.Partition))
		}
	}
	r.close()
	all, err = s.Admin.Relays(s.ctx)
	s.ok(err, "relays")
	s.want("relays after it left", len(all), 0)
	parts, err = s.Admin.Partitions(s.ctx, sinkName)
	s.ok(err, "partitions")
	for _, p := range parts {
		if p.Relay != "" || p.FreedAt.IsZero() {
			s.Errorf("partition %+v is not free", p)
		}
	}
}

func closeEnds(s *suite) {
	r := s.alone()
	r.close()
	s.wantFenced(r)
}

// wantFenced wants every method to refuse for good.
func (s *suite) wantFenced(r *relay) {
	s.Helper()
	for what, err := range r.everyMethod() {
		s.wantError(what, err, store.ErrFenced)
	}
}

// wantVoid wants a session that was taken over to be refused: at once, or once it is loaded again.
func (s *suite) wantVoid(r *relay) {
	s.Helper()
	_, err := r.session.Renew(s.ctx, true)
	if errors.Is(err, store.ErrReload) {
		r.session.Reset()
		_, err = r.session.Renew(s.ctx, true)
	}
	s.wantError("renew after a take-over", err, store.ErrFenced)
	s.wantFenced(r)
}

// everyMethod calls each method but these.
func (r *relay) everyMethod(but ...string) map[string]error {
	errs := map[string]error{}
	ctx := r.s.ctx
	if !slices.Contains(but, "renew") {
		_, errs["renew"] = r.session.Renew(ctx, true)
	}
	_, errs["read"] = r.session.Read(ctx, r.room())
	_, errs["heads"] = r.session.Heads(ctx, r.held(), 10)
	_, errs["followers"] = r.session.Followers(ctx, store.Key{Key: "k"}, store.Place{}, store.Room{Messages: 1, Bytes: 1})
	_, errs["settle"] = r.session.Settle(ctx, store.Settlement{})
	errs["give back"] = r.session.GiveBack(ctx, r.held())
	if !slices.Contains(but, "close") {
		errs["close"] = r.session.Close(ctx)
	}
	return errs
}

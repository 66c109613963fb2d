package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var pauses = []spec{
	{"PausesAreListedUntilTheyEnd", pausing(pausesListed)},
	{"PausesThatCannotBeAreRefused", pausing(pausesRefused)},
	{"PausingAgainChangesReasonAndEnd", pausing(pausedAgain)},
	{"ASinkHasABoundedNumberOfPauses", pausing(pausesBounded)},
	{"WhatAPauseHoldsWaitsUntilSomebodyResumes", pausing(pauseHolds)},
	{"WhatAPauseHoldsComesWhenItEndsByItself", pausing(pauseExpires)},
	{"WhatIsParkedUnderAPauseThatHasEndedIsDue", pausing(pauseEndedBefore)},
	{"AnotherEndOfAPauseHoldsForWhatIsParked", pausing(pauseMoved)},
	{"WhatIsPausedKeepsItsAttempts", pausing(pauseKeepsAttempts)},
	{"MessagesWithoutKeyArePausedAlone", pausing(pausedKeyless)},
	{"ALateMessageStandsBeforeAPausedOne", severalWriters(pausing(pausedLate))},
	{"ActsOnPausedMessages", pausing(pausedActs)},
	{"PausesAreAuditedAndTriedDry", pausing(pausesAudited)},
	{"PausesOfOneSinkLeaveTheOtherAlone", pausing(pausesOfOneSink)},
	{"MessagesSayWhatPausesThem", pausing(pausedMessages)},
}

// pausing is a spec of stores whose Admin is a Pauser.
func pausing(run func(*suite, store.Pauser)) func(*suite) {
	return func(s *suite) {
		p, ok := s.Admin.(store.Pauser)
		if !ok {
			s.lacks("pauses: Admin is no store.Pauser")
			return
		}
		run(s, p)
	}
}

func pauseOf(kind store.PauseKind, name string) store.PauseAct {
	return store.PauseAct{Sink: sinkName, Kind: kind, Name: name, Actor: "ann", Reason: "the shop moves"}
}

func (s *suite) pause(p store.Pauser, act store.PauseAct) store.Pause {
	s.Helper()
	made, err := p.Pause(s.ctx, act)
	s.ok(err, "pause")
	return made
}

func pausedUnder(p store.Pause) store.Verdict {
	return store.Verdict{To: store.Park, Reason: store.ReasonPaused, Pause: p.ID}
}

func pauseNames(ps []store.Pause) (all []string) {
	for _, p := range ps {
		all = append(all, strings.TrimSpace(p.Sink+" "+string(p.Kind)+" "+p.Name))
	}
	return all
}

func pausesListed(s *suite, p store.Pauser) {
	r := s.alone()
	s.want("at first", len(r.heads().Pauses), 0)
	at := s.now()
	s.pause(p, pauseOf(store.PauseKey, "k"))
	s.pause(p, pauseOf(store.PauseTopic, "orders.*"))
	s.pause(p, pauseOf(store.PauseKey, "a b"))
	short := pauseOf(store.PauseTopic, "news")
	short.For = 400 * time.Millisecond
	ends := s.pause(p, short).ExpiresAt
	s.pause(p, pauseOf(store.PauseSink, ""))
	all := []string{"orders sink", "orders topic news", "orders topic orders.*", "orders key a b", "orders key k"}
	list, err := p.Pauses(s.ctx, "")
	s.ok(err, "pauses")
	if s.now().Before(*ends) {
		s.want("pauses", pauseNames(list), all)
		s.want("pauses of the sink", pauseNames(list), all)
		s.want("in status", pauseNames(s.sink().Pauses), all)
		heads := r.heads()
		if heads.Next <= 0 || heads.Next > short.For {
			s.Errorf("heads are to be asked again in %s, want when a pause ends", heads.Next)
		}
	}
	for _, l := range list {
		s.want("reason and actor", l.Reason+", "+l.Actor, "the shop moves, ann")
		if l.ID == 0 || l.CreatedAt.Before(at) || l.CreatedAt.After(s.now()) {
			s.Errorf("made at %s with number %d", l.CreatedAt, l.ID)
		}
		if l.Name != "news" && l.ExpiresAt != nil {
			s.Errorf("%s %s ends at %s, want never", l.Kind, l.Name, l.ExpiresAt)
		}
	}
	if ends.Before(at.Add(short.For)) || ends.After(s.now().Add(short.For)) {
		s.Errorf("it ends at %s, want %s after %s", ends, short.For, at)
	}
	all = append(all[:1], all[2:]...)
	s.until("one has ended", func() bool { return len(r.heads().Pauses) == 4 })
	s.want("a relay's pauses", sortedNames(r.heads().Pauses), sortedNames(s.sink().Pauses))
	list, err = p.Pauses(s.ctx, sinkName)
	s.ok(err, "pauses")
	s.want("pauses when one has ended", pauseNames(list), all)
	s.ok(p.Resume(s.ctx, pauseOf(store.PauseKey, "k")), "resume")
	s.ok(p.Resume(s.ctx, store.PauseAct{Sink: sinkName, Kind: store.PauseSink}), "resume without a word")
	list, err = p.Pauses(s.ctx, "")
	s.ok(err, "pauses")
	s.want("pauses when two were resumed", pauseNames(list), []string{"orders topic orders.*", "orders key a b"})
	s.want("a relay's pauses then", len(r.heads().Pauses), 2)
	for _, bad := range []store.PauseAct{short, pauseOf(store.PauseKey, "k"), pauseOf(store.PauseSink, "")} {
		s.wantError("resume of what is not paused", p.Resume(s.ctx, bad), store.ErrNotFound)
	}
}

func sortedNames(ps []store.Pause) map[string]int64 {
	all := map[string]int64{}
	for i, name := range pauseNames(ps) {
		all[name] = ps[i].ID
	}
	return all
}

func pausesRefused(s *suite, p store.Pauser) {
	s.alone()
	with := func(change func(*store.PauseAct)) store.PauseAct {
		a := pauseOf(store.PauseTopic, "t")
		change(&a)
		return a
	}
	for what, act := range map[string]store.PauseAct{
		"no sink":       with(func(a *store.PauseAct) { a.Sink = "" }),
		"no kind":       with(func(a *store.PauseAct) { a.Kind = "" }),
		"unknown kind":  with(func(a *store.PauseAct) { a.Kind = "message" }),
		"no topic":      pauseOf(store.PauseTopic, ""),
		"no pattern":    pauseOf(store.PauseTopic, "a.>.b"),
		"no key":        pauseOf(store.PauseKey, ""),
		"named sink":    pauseOf(store.PauseSink, "t"),
		"long name":     pauseOf(store.PauseKey, strings.Repeat("x", 256)),
		"no UTF-8":      pauseOf(store.PauseKey, "\xff"),
		"NUL":           with(func(a *store.PauseAct) { a.Reason = "a\x00b" }),
		"long reason":   with(func(a *store.PauseAct) { a.Reason = strings.Repeat("x", 2049) }),
		"two ends":      with(func(a *store.PauseAct) { a.For, a.Until = time.Hour, s.now().Add(time.Hour) }),
		"an end before": with(func(a *store.PauseAct) { a.Until = s.now().Add(-time.Second) }),
		"negative":      with(func(a *store.PauseAct) { a.For = -1 }),
		"year 10000":    with(func(a *store.PauseAct) { a.Until = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC) }),
	} {
		_, err := p.Pause(s.ctx, act)
		s.wantError("pause: "+what, err, store.ErrPauseInvalid)
	}
	_, err := p.Pause(s.ctx, with(func(a *store.PauseAct) { a.Reason = " " }))
	s.wantError("pause without a reason", err, store.ErrReasonRequired)
	nowhere := with(func(a *store.PauseAct) { a.Sink = "nowhere" })
	_, err = p.Pause(s.ctx, nowhere)
	s.wantError("pause of no sink", err, store.ErrNotFound)
	s.wantError("resume of no sink", p.Resume(s.ctx, nowhere), store.ErrNotFound)
	s.wantError("resume of no key", p.Resume(s.ctx, pauseOf(store.PauseKey, "")), store.ErrPauseInvalid)
	_, err = p.Pauses(s.ctx, "nowhere")
	s.wantError("pauses of no sink", err, store.ErrNotFound)
	list, err := p.Pauses(s.ctx, "")
	s.ok(err, "pauses")
	s.want("pauses", len(list), 0)
	last := s.pause(p, with(func(a *store.PauseAct) { a.Until = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC) }))
	s.want("the last end that there is", last.ExpiresAt.Format(time.RFC3339Nano), "9999-12-31T23:59:59.999999Z")
}

func pausedAgain(s *suite, p store.Pauser) {
	r := s.alone()
	first := s.pause(p, pauseOf(store.PauseKey, "k"))
	again := pauseOf(store.PauseKey, "k")
	again.Actor, again.Reason, again.For = "bob", "and the bank", time.Hour
	s.pause(p, again)
	list, err := p.Pauses(s.ctx, sinkName)
	s.ok(err, "pauses")
	if len(list) != 1 || list[0].Actor != "bob" || list[0].Reason != "and the bank" || list[0].ExpiresAt == nil || list[0].ID != first.ID {
		s.Errorf("pauses: %+v", list)
	}
	s.ok(p.Resume(s.ctx, again), "resume")
	s.pause(p, pauseOf(store.PauseKey, "k"))
	s.want("paused once more", pauseNames(r.heads().Pauses), []string{"orders key k"})
}

func pausesBounded(s *suite, p store.Pauser) {
	s.alone()
	most := store.MostPauses
	if s.Pauses != nil {
		s.Pauses(s.T, sinkName, most-10)
	}
	for i := len(s.sink().Pauses); i < most; i++ {
		s.pause(p, pauseOf(store.PauseKey, fmt.Sprint("key-", i)))
	}
	_, err := p.Pause(s.ctx, pauseOf(store.PauseKey, "one more"))
	s.wantError("one more", err, store.ErrStateConflict)
	s.pause(p, pauseOf(store.PauseKey, "key-7"))
	s.ok(p.Resume(s.ctx, pauseOf(store.PauseKey, "key-7")), "resume")
	s.pause(p, pauseOf(store.PauseTopic, "instead"))
	s.want("pauses", len(s.sink().Pauses), store.MostPauses)
}

func pauseHolds(s *suite, p store.Pauser) {
	r := s.alone()
	pause := s.pause(p, pauseOf(store.PauseKey, "k"))
	s.sendNamed("k", "a", "b", "c")
	s.sendNamed("other", "x")
	ts := r.drain()
	k, other := ofKey(ts, "k"), ofKey(ts, "other")
	r.settle(ts, fromLog(k[0], pausedUnder(pause)), fromLog(k[1], behind()), fromLog(k[2], behind()), fromLog(other[0], retryIn(0, 1)))
	r.wantHeads("while it is paused", "x")
	s.want("next", r.heads().Next, time.Duration(0))
	s.want("followers", parkedNames(r.followers("k", store.Place{})), []string{"a", "b", "c"})
	s.sendNamed("k", "d")
	ts = r.drain()
	s.want("blocked", ts[0].Blocked, true)
	r.settle(ts, fromLog(ts[0], behind()))
	r.wantHeads("while it is paused", "x")
	status := s.sink()
	s.want("parked", status.Parked, map[store.Reason]int64{store.ReasonPaused: 1, store.ReasonBehind: 3, store.ReasonRetry: 1})
	s.want("blocked keys", status.BlockedKeys, 2)
	bare, err := r.session.Heads(s.ctx, r.held(), 0)
	s.ok(err, "heads")
	s.want("no heads were asked for", []any{len(bare.Due), len(bare.Pauses)}, []any{0, 1})
	s.ok(p.Resume(s.ctx, pauseOf(store.PauseKey, "k")), "resume")
	bare, err = r.session.Heads(s.ctx, r.held(), 0)
	s.ok(err, "heads")
	s.want("no heads were asked for", []any{len(bare.Due), len(bare.Pauses)}, []any{0, 0})
	r.wantSomeHeads("when it is resumed", "a", "x")
	r.settle(nil, fromParked(r.headOf("k"), out()))
	r.wantSomeHeads("then", "b", "x")
	s.sendNamed("k", "e")
	s.want("the key is blocked by its line", r.drain()[0].Blocked, true)
}

func (r *relay) headOf(key string) store.Parked {
	r.s.Helper()
	for _, h := range r.heads().Due {
		if h.Key == key {
			return h
		}
	}
	r.s.Fatalf("key %s has no head that is due", key)
	return store.Parked{}
}

func pauseExpires(s *suite, p store.Pauser) {
	r := s.alone()
	act := pauseOf(store.PauseTopic, "orders")
	act.For = 400 * time.Millisecond
	pause := s.pause(p, act)
	s.sendNamed("k", "a", "b")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], pausedUnder(pause)), fromLog(ts[1], behind()))
	heads := r.heads()
	if s.now().Before(*pause.ExpiresAt) {
		s.want("heads at first", len(heads.Due), 0)
		if heads.Next <= 0 || heads.Next > act.For {
			s.Errorf("the next one is due in %s, want at most %s", heads.Next, act.For)
		}
	}
	s.until("it has ended", func() bool { return len(r.heads().Due) > 0 })
	if at := s.now(); at.Before(*pause.ExpiresAt) {
		s.Errorf("it was due at %s, before the pause ended at %s", at, pause.ExpiresAt)
	}
	r.wantHeads("when it has ended", "a")
	r.wantHeads("asked again", "a")
	r.settle(nil, fromParked(r.headOf("k"), out()))
	r.wantHeads("then", "b")
}

func pauseEndedBefore(s *suite, p store.Pauser) {
	r := s.alone()
	pause := s.pause(p, pauseOf(store.PauseKey, "k"))
	s.sendNamed("k", "a", "b")
	s.send(s.message("loose", ""))
	ts := r.drain()
	s.ok(p.Resume(s.ctx, pauseOf(store.PauseKey, "k")), "resume")
	k, loose := ofKey(ts, "k"), ofKey(ts, "")
	r.settle(ts, fromLog(k[0], pausedUnder(pause)), fromLog(k[1], behind()), fromLog(loose[0], pausedUnder(pause)))
	r.wantSomeHeads("parked under a pause that had ended", "a", "loose")
	r.settle(nil, fromParked(r.headOf("k"), pausedUnder(pause)))
	r.wantSomeHeads("parked again under it", "a", "loose")
	r.settle(nil, fromParked(r.headOf("k"), pausedUnder(store.Pause{ID: 1 << 40})))
	r.wantSomeHeads("parked under a pause that never was", "a", "loose")
	for range 3 { // whoever removes what has ended does not strand anything
		s.pause(p, pauseOf(store.PauseKey, "another"))
		s.ok(p.Resume(s.ctx, pauseOf(store.PauseKey, "another")), "resume")
	}
	r.wantSomeHeads("in the end", "a", "loose")
}

func pauseMoved(s *suite, p store.Pauser) {
	r := s.alone()
	long := pauseOf(store.PauseKey, "k")
	long.For = time.Hour
	pause := s.pause(p, long)
	s.sendNamed("k", "a")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], pausedUnder(pause)))
	if next := r.heads().Next; next <= 59*time.Minute || next > time.Hour {
		s.Errorf("the next one is due in %s, want an hour", next)
	}
	never := long
	never.For = 0
	s.pause(p, never)
	s.want("next without an end", r.heads().Next, time.Duration(0))
	short := long
	short.For = 200 * time.Millisecond
	at := s.now()
	s.pause(p, short)
	s.until("it has ended", func() bool { return len(r.heads().Due) == 1 })
	if waited := s.now().Sub(at); waited < short.For {
		s.Errorf("it was due after %s, want %s", waited, short.For)
	}
	// Paused once more before a relay took it up: it waits again.
	pause = s.pause(p, long)
	if due := r.heads().Due; len(due) == 1 {
		r.settle(nil, fromParked(due[0], pausedUnder(pause)))
	}
	r.wantHeads("paused once more")
	s.ok(p.Resume(s.ctx, long), "resume")
	r.wantHeads("resumed", "a")
}

func pauseKeepsAttempts(s *suite, p store.Pauser) {
	r := s.alone()
	s.sendNamed("k", "a")
	s.sendNamed("dead", "b")
	ts := r.drain()
	r.settle(ts, fromLog(ofKey(ts, "k")[0], retryIn(0, 3)), fromLog(ofKey(ts, "dead")[0], dies(true, 4)))
	s.ok(s.Admin.Requeue(s.ctx, act(s.corpse().ID), false), "requeue")
	pause := s.pause(p, pauseOf(store.PauseTopic, ">"))
	r.settle(nil, fromParked(r.headOf("k"), pausedUnder(pause)), fromParked(r.headOf("dead"), pausedUnder(pause)))
	r.wantHeads("while they are paused")
	list, err := s.Admin.Messages(s.ctx, store.Filter{Sink: sinkName, Reason: store.ReasonPaused})
	s.ok(err, "messages")
	s.want("paused messages", len(list.Messages), 2)
	for _, m := range list.Messages {
		code := map[string]outbox.Code{"k": "onward/rejected", "dead": "onward/attempts-exhausted"}[m.Key]
		s.want("attempts and last failure of "+m.Key, []any{m.States[0].Attempts, m.States[0].LastCode, m.States[0].DueAt},
			[]any{map[string]int{"k": 3, "dead": 4}[m.Key], code, (*time.Time)(nil)})
	}
	s.ok(p.Resume(s.ctx, pauseOf(store.PauseTopic, ">")), "resume")
	k, dead := r.headOf("k"), r.headOf("dead")
	s.want("attempts and before", []any{k.Attempts, k.Before, dead.Attempts, dead.Before}, []any{3, 0, 4, 4})
	s.want("reason", k.Reason, store.ReasonPaused)
}

func pausedKeyless(s *suite, p store.Pauser) {
	r := s.alone()
	pause := s.pause(p, pauseOf(store.PauseTopic, "orders"))
	s.send(s.message("a", ""), s.message("b", ""), s.message("c", ""))
	ts := r.drain()
	var verdicts []store.Verdict
	for _, t := range ts {
		verdicts = append(verdicts, fromLog(t, pausedUnder(pause)))
	}
	r.settle(ts, verdicts...)
	r.wantHeads("while they are paused")
	s.want("parked", s.sink().Parked, map[store.Reason]int64{store.ReasonPaused: 3})
	s.ok(p.Resume(s.ctx, pauseOf(store.PauseTopic, "orders")), "resume")
	some, err := r.session.Heads(s.ctx, r.held(), 2)
	s.ok(err, "heads")
	s.want("two at most", len(some.Due), 2)
	r.settle(nil, fromParked(some.Due[0], out()), fromParked(some.Due[1], out()))
	last := r.heads().Due
	s.want("the last one", len(last), 1)
	r.settle(nil, fromParked(last[0], out()))
	r.wantHeads("in the end")
}

func pausedLate(s *suite, p store.Pauser) {
	r := s.alone()
	pause := s.pause(p, pauseOf(store.PauseKey, "k"))
	tx := s.writeLate("k")
	s.sendNamed("k", "behind")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], pausedUnder(pause)), fromLog(ts[1], behind()))
	s.commit(tx)
	ts = r.drain()
	s.want("late one", names(ts), []string{"late"})
	r.settle(ts, fromLog(ts[0], behind()))
	head := r.headOf("k") // due at once: the core parks it again
	s.want("head", string(head.Payload), "late")
	r.settle(nil, fromParked(head, pausedUnder(pause)))
	r.wantHeads("while it is paused")
	s.ok(p.Resume(s.ctx, pauseOf(store.PauseKey, "k")), "resume")
	for _, want := range []string{"late", "early", "behind"} {
		r.settle(nil, fromParked(r.wantHeads("one after the other", want)[0], out()))
	}
}

func pausedActs(s *suite, p store.Pauser) {
	r := s.alone()
	pause := s.pause(p, pauseOf(store.PauseKey, "k"))
	s.sendNamed("k", "a", "b", "c")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], pausedUnder(pause)), fromLog(ts[1], behind()), fromLog(ts[2], behind()))
	s.ok(s.Admin.Discard(s.ctx, act(ts[0].ID)), "discard of the head")
	head := r.wantHeads("after a discard", "b")[0] // the core knows that it is paused
	r.settle(nil, fromParked(head, pausedUnder(pause)))
	s.ok(s.Admin.Discard(s.ctx, act(ts[2].ID)), "discard behind")
	r.wantHeads("after a discard behind")
	s.ok(p.Resume(s.ctx, pauseOf(store.PauseKey, "k")), "resume")
	s.ok(s.Admin.Discard(s.ctx, act(ts[1].ID)), "discard when it was resumed")
	r.wantHeads("in the end")
	s.sendNamed("k", "d")
	s.want("blocked in the end", r.drain()[0].Blocked, false)
}

func pausesAudited(s *suite, p store.Pauser) {
	r := s.alone()
	dry := pauseOf(store.PauseKey, "k")
	dry.DryRun = true
	s.pause(p, dry)
	s.wantError("dry resume of what is not paused", p.Resume(s.ctx, dry), store.ErrNotFound)
	s.want("pauses after a dry run", len(r.heads().Pauses), 0)
	s.pause(p, pauseOf(store.PauseKey, "k"))
	s.ok(p.Resume(s.ctx, dry), "dry resume")
	s.want("pauses after a dry resume", len(r.heads().Pauses), 1)
	over := store.PauseAct{Sink: sinkName, Kind: store.PauseKey, Name: "k", Actor: "bob", Reason: "moved"}
	s.ok(p.Resume(s.ctx, over), "resume")
	if s.Audit == nil {
		s.lacks("a look at the audit")
		return
	}
	s.want("audit", s.Audit(s.T), []AuditLine{
		{Actor: "ann", Action: "pause", Sink: sinkName, Reason: "the shop moves"},
		{Actor: "bob", Action: "resume", Sink: sinkName, Reason: "moved"},
	})
}

func pausesOfOneSink(s *suite, p store.Pauser) {
	orders, audit := s.alone(), s.joinOn(s.open(), s.long(), "audit").holdAll()
	pause := s.pause(p, pauseOf(store.PauseKey, "k"))
	s.sendNamed("k", "a")
	for _, r := range []*relay{orders, audit} {
		ts := r.drain()
		r.settle(ts, fromLog(ts[0], pausedUnder(pause))) // the other one's pause holds nothing here
	}
	orders.wantHeads("of the sink")
	audit.wantHeads("of the other sink", "a")
	s.want("pauses of the other sink", len(audit.heads().Pauses), 0)
	orders.close()
	s.ok(s.Admin.RemoveSink(s.ctx, store.Act{Sink: sinkName, Actor: "ann", Reason: "gone"}), "remove")
	list, err := p.Pauses(s.ctx, "")
	s.ok(err, "pauses")
	s.want("pauses of a sink that was removed", len(list), 0)
	s.want("pauses of its successor", len(s.alone().heads().Pauses), 0)
}

func pausedMessages(s *suite, p store.Pauser) {
	r := s.alone()
	s.sendNamed("k", "a", "b", "c")
	s.sendNamed("free", "x", "y")
	ts := r.drain()
	k, free := ofKey(ts, "k"), ofKey(ts, "free")
	pause := s.pause(p, pauseOf(store.PauseKey, "k"))
	r.settle(ts, fromLog(k[0], pausedUnder(pause)), fromLog(k[1], behind()), fromLog(k[2], dies(true, 1)), fromLog(free[0], retryIn(time.Hour, 1)))
	says := func(t taken) string {
		s.Helper()
		m, err := s.Admin.Message(s.ctx, t.ID)
		s.ok(err, "show")
		if m.States[0].Pause == nil {
			return string(m.States[0].State)
		}
		return fmt.Sprint(m.States[0].State, " under ", m.States[0].Pause.Kind, " ", m.States[0].Pause.Reason)
	}
	s.want("paused", says(k[0]), "parked under key the shop moves")
	s.want("behind", says(k[1]), "parked under key the shop moves")
	s.want("dead", says(k[2]), "dead")
	s.want("retry", says(free[0]), "parked")
	s.want("published", says(free[1]), "published")
	s.pause(p, pauseOf(store.PauseSink, ""))
	pending := s.sendNamed("free", "z")[0]
	s.want("pending", says(taken{Record: store.Record{Record: outbox.Record{Message: outbox.Message{ID: pending.ID}}}}), "pending under sink the shop moves")
	s.want("retry in a paused sink", says(free[0]), "parked under sink the shop moves")
	s.ok(p.Resume(s.ctx, pauseOf(store.PauseSink, "")), "resume")
	s.want("retry when it is resumed", says(free[0]), "parked")
}

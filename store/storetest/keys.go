package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/store"
)

var keys = []spec{
	{"KeysSayWhatBlocksThem", ofKeys(keysSay)},
	{"KeysAreListedInPages", ofKeys(keysPaged)},
	{"KeysThatNobodyKnowsAreNotFound", ofKeys(keysUnknown)},
}

// ofKeys is a spec of stores whose Admin is a store.Keys.
func ofKeys(run func(*suite, store.Keys)) func(*suite) {
	return func(s *suite) {
		k, ok := s.Admin.(store.Keys)
		if !ok {
			s.lacks("what blocks keys: Admin is no store.Keys")
			return
		}
		run(s, k)
	}
}

func (s *suite) showKey(k store.Keys, key string) store.KeyInfo {
	s.Helper()
	all, err := k.Key(s.ctx, sinkName, key)
	s.ok(err, "key "+key)
	if len(all) != 1 || all[0].Sink != sinkName || all[0].Key != key || all[0].Partition != s.partitionOf(key) {
		s.Fatalf("key %s: %+v", key, all)
	}
	return all[0]
}

func keysSay(s *suite, k store.Keys) {
	r := s.alone()
	r.scheduled("later", "scheduled", time.Hour)
	s.sendNamed("retry", "a", "b", "c")
	s.sendNamed("dead", "d", "e")
	s.sendNamed("skipped", "f")
	s.sendNamed("free", "g")
	ts := r.drain()
	retry, dead := ofKey(ts, "retry"), ofKey(ts, "dead")
	r.settle(ts, fromLog(retry[0], retryIn(time.Hour, 2)), fromLog(retry[1], behind()), fromLog(retry[2], behind()),
		fromLog(dead[0], dies(true, 3)), fromLog(dead[1], behind()), fromLog(ofKey(ts, "skipped")[0], dies(false, 1)))

	info := s.showKey(k, "retry")
	s.want("of a retry", []any{info.Waiting, info.Scheduled, info.Dead == nil, info.Head.ID, info.Head.Reason, info.Head.Attempts, info.Head.Code},
		[]any{3, 0, true, retry[0].ID, store.ReasonRetry, 2, "onward/rejected"})
	if due := info.Head.DueAt; due == nil || due.Before(s.now().Add(59*time.Minute)) {
		s.Errorf("the next try is at %v, want in an hour", due)
	}
	if info.Oldest == nil || !info.Oldest.Equal(retry[0].CreatedAt) {
		s.Errorf("the oldest was written at %v, want %s", info.Oldest, retry[0].CreatedAt)
	}
	info = s.showKey(k, "dead")
	s.want("of a dead letter", []any{info.Waiting, info.DeadCount, info.Dead.ID, info.Dead.Code, info.Dead.Attempts, info.Dead.Error, info.Head.ID, info.Head.Reason, info.Head.DueAt},
		[]any{1, 1, dead[0].ID, "onward/attempts-exhausted", 3, "never", dead[1].ID, store.ReasonBehind, (*time.Time)(nil)})
	if !info.Oldest.Equal(dead[0].CreatedAt) {
		s.Errorf("the oldest was written at %v, want %s", info.Oldest, dead[0].CreatedAt)
	}
	info = s.showKey(k, "scheduled")
	s.want("of a scheduled one", []any{info.Waiting, info.Scheduled, info.Blocked()}, []any{0, 1, false})
	for _, key := range []string{"skipped", "free"} {
		info = s.showKey(k, key)
		s.want("of key "+key, []any{info.Waiting, info.Scheduled, info.Blocked(), info.Oldest == nil}, []any{0, 0, false, true})
	}
	all := listKeys(s, k, store.KeyFilter{Sink: sinkName})
	s.want("keys", namesOfKeys(all), []string{"dead", "retry", "scheduled"})
	s.want("waiting", all[slices.IndexFunc(all, func(i store.KeyInfo) bool { return i.Key == "retry" })].Waiting, 3)
	s.want("blocked keys", namesOfKeys(listKeys(s, k, store.KeyFilter{Sink: sinkName, Blocked: true})), []string{"dead", "retry"})

	if p, ok := k.(store.Pauser); ok {
		pause := s.pause(p, pauseOf(store.PauseTopic, "orders"))
		s.want("of a paused topic", s.showKey(k, "retry").Pause.Name, "orders")
		s.pause(p, pauseOf(store.PauseKey, "free"))
		s.want("of a paused key", s.showKey(k, "free").Pause.Kind, store.PauseKey)
		s.sendNamed("paused", "h")
		ts = r.drain()
		r.settle(ts, fromLog(ts[0], pausedUnder(pause)))
		info = s.showKey(k, "paused")
		s.want("of a paused message", []any{info.Head.Reason, info.Head.DueAt, info.Pause.Kind}, []any{store.ReasonPaused, (*time.Time)(nil), store.PauseTopic})
		s.want("blocked keys", namesOfKeys(listKeys(s, k, store.KeyFilter{Blocked: true})), []string{"dead", "paused", "retry"})
	}
}

func namesOfKeys(all []store.KeyInfo) (names []string) {
	for _, k := range all {
		names = append(names, k.Key)
	}
	slices.Sort(names)
	return names
}

// listKeys goes through the pages of a list, and wants each key once, in order.
func listKeys(s *suite, k store.Keys, f store.KeyFilter) (all []store.KeyInfo) {
	s.Helper()
	for n := 0; ; n++ {
		list, err := k.Keys(s.ctx, f)
		s.ok(err, "keys")
		all = append(all, list.Keys...)
		if f.Limit > 0 && len(list.Keys) > f.Limit || len(list.Keys) == 0 && list.Next != "" || n > 100 {
			s.Fatalf("page %d of the list has %d keys and next %q", n, len(list.Keys), list.Next)
		}
		if f.After = list.Next; f.After == "" {
			break
		}
	}
	seen := map[string]bool{}
	for _, k := range all {
		if seen[k.Sink+" "+k.Key] {
			s.Errorf("key %s of sink %s is listed twice", k.Key, k.Sink)
		}
		seen[k.Sink+" "+k.Key] = true
	}
	if !slices.IsSortedFunc(all, func(a, b store.KeyInfo) int {
		return cmp.Or(cmp.Compare(a.Sink, b.Sink), cmp.Compare(a.Partition, b.Partition)) // keys as the database sorts texts
	}) {
		s.Errorf("the keys are not in order: %s", namesOfKeys(all))
	}
	return all
}

func keysPaged(s *suite, k store.Keys) {
	for _, sink := range []string{sinkName, "audit"} {
		r := s.joinOn(s.open(), s.long(), sink).holdAll()
		if sink == sinkName {
			for i := range 7 {
				s.sendNamed(fmt.Sprint("key ", i), "a", "b")
			}
			s.sendNamed("a/b/c", "a", "b")
			s.sendNamed("Ünï", "a", "b")
			s.send(s.message("loose", ""))
		}
		ts := r.drain()
		var verdicts []store.Verdict
		for i, t := range ts {
			switch {
			case t.Key == "" || t.name() == "a" && i%2 == 0:
				verdicts = append(verdicts, fromLog(t, retryIn(time.Hour, 1)))
			case t.name() == "a":
				verdicts = append(verdicts, fromLog(t, dies(true, 1)))
			default:
				verdicts = append(verdicts, fromLog(t, behind()))
			}
		}
		r.settle(ts, verdicts...)
	}
	for _, blocked := range []bool{false, true} {
		all := listKeys(s, k, store.KeyFilter{Blocked: blocked})
		s.want("keys", len(all), 18)
		for _, limit := range []int{1, 4, 18} {
			paged := listKeys(s, k, store.KeyFilter{Blocked: blocked, Limit: limit})
			s.want(fmt.Sprint("in pages of ", limit), namesOfKeys(paged), namesOfKeys(all))
		}
		s.want("of one sink", len(listKeys(s, k, store.KeyFilter{Sink: "audit", Blocked: blocked, Limit: 2})), 9)
	}
	both, err := k.Key(s.ctx, "", "a/b/c")
	s.ok(err, "key")
	s.want("sinks of a key", len(both), 2)
}

func keysUnknown(s *suite, k store.Keys) {
	s.alone()
	_, err := k.Key(s.ctx, "", "nobody")
	s.wantError("a key that was never seen", err, store.ErrNotFound)
	_, err = k.Key(s.ctx, "", "")
	s.wantError("no key", err, store.ErrNotFound)
	s.sendNamed("k", "a")
	info := s.showKey(k, "k")
	s.want("blocked", info.Blocked(), false)
	_, err = k.Key(s.ctx, "nowhere", "k")
	s.wantError("no sink", err, store.ErrNotFound)
	_, err = k.Keys(s.ctx, store.KeyFilter{Sink: "nowhere"})
	s.wantError("keys of no sink", err, store.ErrNotFound)
	for _, f := range []store.KeyFilter{{Limit: -1}, {Limit: 10_001}, {After: "nonsense"}} {
		_, err = k.Keys(s.ctx, f)
		s.wantError(fmt.Sprintf("filter %+v", f), err, store.ErrFilterInvalid)
	}
}

package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/onwardhq/onward/store"
)

var outcomes = []spec{
	{"AScheduledMessageWaitsAlone", scheduledWaitsAlone},
	{"AScheduledMessageJoinsBehindWhatWaits", scheduledJoinsBehind},
	{"AVerdictOnARemovedRowChangesNothing", goneChangesNothing},
	{"AMessageIsParkedOnce", parkedOnce},
	{"ErrorTextsAreMadeStorable", errorTexts},
	{"ParkedMessagesOutliveTheirRelay", parkedOutlive},
	{"ParkedMessagesAreNotBacklog", parkedNotBacklog},
	{"AttemptsAreKept", attemptsKept},
}

// scheduled writes a message of a key whose time is ahead, and parks it.
func (r *relay) scheduled(name, key string, wait time.Duration) {
	r.s.Helper()
	m := r.s.message(name, key)
	m.AvailableAt = r.s.now().Add(wait)
	r.s.send(m)
	ts := r.drain()
	if len(ts) != 1 || !ts[0].Ahead {
		r.s.Fatalf("a message whose time is ahead came as %+v", ts)
	}
	r.settle(ts, fromLog(ts[0], store.Verdict{To: store.Park, Reason: store.ReasonScheduled}))
}

func scheduledWaitsAlone(s *suite) {
	r := s.alone()
	const wait = 2 * time.Second
	at := s.now()
	r.scheduled("scheduled", "k", wait)
	r.scheduled("hours later", "k", 3*time.Hour)
	s.sendNamed("k", "now")
	ts := r.drain()
	if s.now().Sub(at) < wait {
		s.want("heads at first", len(r.heads().Due), 0)
		s.want("blocked by a message whose time is ahead", ts[0].Blocked, false)
	}
	r.settleAll()
	s.until("it is due", func() bool { return len(r.heads().Due) > 0 })
	if early := s.now().Sub(at); early < wait {
		s.Errorf("it came after %s, want %s", early, wait)
	}
	head := r.wantHeads("when it is due", "scheduled")[0]
	s.want("reason", head.Reason, store.ReasonScheduled)
	s.sendNamed("k", "then")
	s.want("blocked by a scheduled message that is due", r.drain()[0].Blocked, true)
	r.settle(r.untold, fromLog(r.untold[0], behind()), fromParked(head, out()))
	head = r.wantHeads("when it is out", "then")[0]
	r.settle(nil, fromParked(head, out()))
	r.wantHeads("in the end")
	if next := r.heads().Next; next <= 0 || next > 3*time.Hour {
		s.Errorf("the last one is due in %s, want within 3h", next)
	}
	s.want("followers without what is scheduled", len(r.followers("k", store.Place{})), 0)
}

func scheduledJoinsBehind(s *suite) {
	r := s.alone()
	const wait = 2 * time.Second
	r.scheduled("scheduled", "k", wait)
	r.scheduled("scheduled of a blocked key", "dead", wait)
	s.sendNamed("dead", "corpse")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], dies(true, 1)))
	s.sendNamed("k", "a", "b")
	r.park(0)
	r.wantHeads("before it is due", "a")
	s.until("it has joined", func() bool {
		r.heads()
		m, err := s.Admin.Messages(s.ctx, store.Filter{Sink: sinkName, Reason: store.ReasonScheduled})
		s.ok(err, "messages")
		return len(m.Messages) == 0
	})
	r.wantHeads("when it has joined", "a")
	all := r.followers("k", store.Place{})
	s.want("line", parkedNames(all), []string{"a", "b", "scheduled"})
	s.want("reason", all[2].Reason, store.ReasonBehind)
	s.sendNamed("k", "c")
	ts = r.drain()
	r.settle(ts, fromLog(ts[0], behind()))
	for _, want := range []string{"a", "b", "scheduled", "c"} {
		r.settle(nil, fromParked(r.wantHeads("one after the other", want)[0], out()))
	}
	s.want("followers of a blocked key", len(r.followers("dead", store.Place{})), 0)
	s.ok(s.Admin.Discard(s.ctx, act(s.corpse().ID)), "discard")
	r.wantHeads("when its dead letter is gone", "scheduled of a blocked key")
}

// corpse is the only dead letter.
func (s *suite) corpse() store.DeadInfo {
	s.Helper()
	list, err := s.Admin.Dead(s.ctx, store.Filter{Sink: sinkName})
	s.ok(err, "dead")
	if len(list.Dead) != 1 {
		s.Fatalf("%d dead letters, want 1", len(list.Dead))
	}
	return list.Dead[0]
}

func goneChangesNothing(s *suite) {
	r := s.alone()
	keys := s.keysTogether(4)
	var heads []store.Parked
	for _, key := range keys {
		s.sendNamed(key, key, key+" behind")
		ts := r.drain()
		r.settle(ts, fromLog(ts[0], retryIn(0, 1)), fromLog(ts[1], behind()))
	}
	heads = r.heads().Due
	if len(heads) != 4 {
		s.Fatalf("%d heads, want 4", len(heads))
	}
	for _, h := range heads[:3] {
		s.ok(s.Admin.Discard(s.ctx, act(h.ID)), "discard")
	}
	settled := r.settle(nil, fromParked(heads[0], out()), fromParked(heads[1], retryIn(0, 2)), fromParked(heads[2], dies(true, 2)), fromParked(heads[3], out()))
	s.want("gone", settled.Gone, 3)
	list, err := s.Admin.Dead(s.ctx, store.Filter{})
	s.ok(err, "dead")
	s.want("dead letters", len(list.Dead), 0)
	r.wantSomeHeads("of all keys", keys[0]+" behind", keys[1]+" behind", keys[2]+" behind", keys[3]+" behind")
	for i, h := range heads {
		m, err := s.Admin.Message(s.ctx, h.ID)
		s.ok(err, "show")
		want := store.StateDiscarded
		if i == 3 {
			want = store.StatePublished
		}
		s.want("state", m.States[0].State, want)
	}
	s.want("gone, again", r.settle(nil, fromParked(heads[3], out())).Gone, 1)
}

func (r *relay) wantSomeHeads(what string, want ...string) {
	r.s.Helper()
	got := map[string]bool{}
	for _, p := range r.heads().Due {
		got[string(p.Payload)] = true
	}
	wanted := map[string]bool{}
	for _, name := range want {
		wanted[name] = true
	}
	r.s.want("heads "+what, got, wanted)
}

// parkedOnce: after a crash a message may come again from the log although it has its outcome; that outcome stands.
func parkedOnce(s *suite) {
	r := s.alone()
	receipts := s.sendNamed("k", "parked", "dead", "discarded", "last")
	ts := r.drain()
	r.settle(nil, fromLog(ts[0], retryIn(0, 2)), fromLog(ts[1], dies(false, 1)), fromLog(ts[2], retryIn(0, 1)))
	s.ok(s.Admin.Discard(s.ctx, act(ts[2].ID)), "discard")
	r.close()
	r = r.successor()
	ts = r.drain()
	s.want("again", names(ts), []string{"parked", "dead", "discarded", "last"})
	settled := r.settle(ts, fromLog(ts[0], behind()), fromLog(ts[1], behind()), fromLog(ts[2], behind()), fromLog(ts[3], behind()))
	s.want("gone", settled.Gone, 0)
	s.wantState("parked", receipts[0], store.StateParked)
	s.wantState("dead", receipts[1], store.StateDead)
	s.wantState("discarded", receipts[2], store.StateDiscarded)
	head := r.wantHeads("of the key", "parked")[0]
	s.want("attempts", head.Attempts, 2)
	s.want("line", parkedNames(r.followers("k", store.Place{})), []string{"parked", "last"})
}

func errorTexts(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a")
	ts := r.drain()
	v := dies(true, 1)
	v.Error = "\x00\xff" + strings.Repeat("ä", 3000)
	v.Tried.Error = v.Error
	r.settle(ts, fromLog(ts[0], v))
	list, err := s.Admin.Dead(s.ctx, store.Filter{ID: ts[0].ID})
	s.ok(err, "dead")
	if len(list.Dead) != 1 || len(list.Dead[0].Tries) != 1 {
		s.Fatalf("got %+v, want one dead letter with one attempt", list.Dead)
	}
	for what, text := range map[string]string{"dead letter": list.Dead[0].Error, "attempt": list.Dead[0].Tries[0].Error} {
		if len(text) > 2048 || len(text) < 2000 || strings.ToValidUTF8(text, "") != text || strings.Contains(text, "\x00") {
			s.Errorf("the error of the %s has %d bytes: %.20q ... %q", what, len(text), text, text[max(0, len(text)-20):])
		}
	}
}

func parkedOutlive(s *suite) {
	r := s.join(s.short()).holdAll()
	s.sendNamed("k", "a", "b")
	r.park(0)
	s.sendNamed("l", "c", "d")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], dies(true, 1)), fromLog(ts[1], behind()))
	next := r.successor()
	next.drain() // the heads of partitions that were taken over may wait for their first read
	next.wantHeads("after a take-over", "a")
	s.want("followers", parkedNames(next.followers("k", store.Place{})), []string{"a", "b"})
	s.sendNamed("l", "e")
	s.want("blocked", next.drain()[0].Blocked, true)
	s.ok(s.Admin.Discard(s.ctx, act(ts[0].ID)), "discard")
	next.wantSomeHeads("after a discard", "a", "d")
	next.close()
	last := next.successor()
	last.drain()
	last.wantSomeHeads("after a restart", "a", "d")
}

func parkedNotBacklog(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b", "c", "d")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], retryIn(time.Hour, 1)), fromLog(ts[1], behind()), fromLog(ts[2], behind()), fromLog(ts[3], dies(false, 1)))
	r.scheduled("scheduled", "k", time.Hour)
	k := s.sink()
	s.want("backlog and lag", []any{k.Backlog, k.Lag}, []any{0, time.Duration(0)})
	s.want("parked", k.Parked, map[store.Reason]int64{store.ReasonRetry: 1, store.ReasonBehind: 2, store.ReasonScheduled: 1})
	s.want("dead", k.Dead, 1)
	parts, err := s.Admin.Partitions(s.ctx, sinkName)
	s.ok(err, "partitions")
	n := int64(0)
	for _, p := range parts {
		n += p.Parked
	}
	s.want("parked in all partitions", n, 4)
}

func attemptsKept(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a")
	r.park(0)
	r.settle(nil, fromParked(r.heads().Due[0], retryIn(0, 2)))
	again := retryIn(0, 2) // the same attempt, written twice
	again.Tried.Error = "other"
	r.settle(nil, fromParked(r.heads().Due[0], again))
	r.settle(nil, fromParked(r.heads().Due[0], dies(true, 3)))
	id := s.corpse().ID
	list, err := s.Admin.Dead(s.ctx, store.Filter{ID: id})
	s.ok(err, "dead")
	d := list.Dead[0]
	var tries []string
	for _, a := range d.Tries {
		tries = append(tries, fmt.Sprint(a.No, " ", a.Outcome, " ", a.Code, " ", a.Error, " ", a.Took))
		if a.At.IsZero() || a.Relay != r.as.Name {
			s.Errorf("attempt %+v has no time or another relay than %s", a, r.as.Name)
		}
	}
	s.want("attempts", strings.Join(tries, "; "), "1 retry onward/rejected no 1ms; 2 retry onward/rejected no 1ms; 3 rejected onward/rejected never 1ms")
	s.want("dead letter", []any{d.Attempts, d.Code, d.Error, d.Blocks, d.Relay, string(d.Payload)},
		[]any{3, "onward/attempts-exhausted", "never", true, r.as.Name, "a"})
	if d.FirstFailure.IsZero() || d.LastFailure.Before(d.FirstFailure) {
		s.Errorf("first failure %s, last failure %s", d.FirstFailure, d.LastFailure)
	}
	s.ok(s.Admin.Requeue(s.ctx, act(id), false), "requeue")
	head := r.wantHeads("after a requeue", "a")[0]
	s.want("attempts and those before", []any{head.Attempts, head.Before}, []any{3, 3})
	r.settle(nil, fromParked(head, dies(true, 4)))
	list, err = s.Admin.Dead(s.ctx, store.Filter{ID: id})
	s.ok(err, "dead")
	s.want("attempts in all", len(list.Dead[0].Tries), 4)
}

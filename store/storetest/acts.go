package storetest

import (
	"strings"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var acts = []spec{
	{"RequeueKeepsIDAndPlace", requeueKeepsPlace},
	{"RequeueRefusesToReorder", requeueRefusesReorder},
	{"RequeueRefusesWhatIsNotDead", requeueRefusesNotDead},
	{"DiscardNeedsAReason", discardNeedsReason},
	{"DiscardRefusesWhatIsNotThere", discardRefusesMissing},
	{"DiscardTakesWhatWaitsInTheMiddle", discardMiddle},
	{"DryRunsChangeNothing", dryRuns},
	{"ActsAreAudited", actsAudited},
	{"ActsOfOneSinkLeaveTheOtherAlone", actsOfOneSink},
}

func act(id outbox.ID) store.Act {
	return store.Act{Sink: sinkName, ID: id, Actor: "ann", Reason: "wrong"}
}

func requeueKeepsPlace(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b", "c")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], retryIn(0, 1)), fromLog(ts[1], behind()), fromLog(ts[2], behind()))
	r.settle(nil, fromParked(r.heads().Due[0], dies(true, 2)))
	s.sendNamed("k", "d")
	d := r.drain()
	r.settle(d, fromLog(d[0], behind()))
	s.ok(s.Admin.Requeue(s.ctx, act(ts[0].ID), false), "requeue")
	head := r.wantHeads("after a requeue", "a")[0]
	s.want("id and place", []any{head.ID, head.Place}, []any{ts[0].ID, store.Place{Order: ts[0].Seq, Seq: ts[0].Seq}})
	s.want("reason, attempts, before", []any{head.Reason, head.Attempts, head.Before}, []any{store.ReasonRetry, 2, 2})
	s.want("line", parkedNames(r.followers("k", store.Place{})), []string{"a", "b", "c", "d"})
	s.want("dead", s.sink().Dead, 0)
	r.settle(nil, fromParked(head, retryIn(0, 3)))
	head = r.wantHeads("after another failure", "a")[0]
	s.want("attempts and before", []any{head.Attempts, head.Before}, []any{3, 2})
}

func requeueRefusesReorder(s *suite) {
	r := s.alone()
	later := []outbox.Message{s.message("a", "k")}
	for range 113 {
		later = append(later, s.message("later", "k"))
	}
	s.send(later...)
	s.send(s.message("keyless", ""), s.message("keyless too", ""))
	ts := r.drain()
	k := ofKey(ts, "k")
	loose := ofKey(ts, "")
	r.settle(ts, fromLog(k[0], dies(false, 1)), fromLog(loose[0], dies(false, 1)))
	for _, dry := range []bool{true, false} {
		a := act(k[0].ID)
		a.DryRun = dry
		err := s.Admin.Requeue(s.ctx, a, false)
		s.wantError("requeue", err, store.ErrReorderRefused)
		if err == nil || !strings.Contains(err.Error(), "113") {
			s.Errorf("%v does not say that 113 later messages were published", err)
		}
	}
	s.want("dead", s.sink().Dead, 2)
	s.ok(s.Admin.Requeue(s.ctx, act(k[0].ID), true), "requeue, accepting the reorder")
	r.wantHeads("after a requeue", "a")
	s.ok(s.Admin.Requeue(s.ctx, act(loose[0].ID), false), "requeue without a key: there is no order")
	r.wantSomeHeads("after both", "a", loose[0].name())
}

func requeueRefusesNotDead(s *suite) {
	r := s.alone()
	receipts := s.sendNamed("k", "published", "parked", "pending")
	ts := r.drain()
	r.settle(ts[:2], fromLog(ts[1], retryIn(0, 1)))
	for i, receipt := range receipts {
		s.wantError("requeue of a message that is "+ts[i].name(), s.Admin.Requeue(s.ctx, act(receipt.ID), false), store.ErrStateConflict)
	}
	s.wantError("requeue of nothing", s.Admin.Requeue(s.ctx, act(outbox.NewID()), false), store.ErrNotFound)
	other := act(receipts[0].ID)
	other.Sink = "no-such-sink"
	s.wantError("requeue in no sink", s.Admin.Requeue(s.ctx, other, false), store.ErrNotFound)
	r.wantHeads("as before", "parked")
}

func discardNeedsReason(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a")
	r.park(0)
	head := r.wantHeads("before", "a")[0]
	a := act(head.ID)
	a.Reason = ""
	s.wantError("discard", s.Admin.Discard(s.ctx, a), store.ErrReasonRequired)
	r.wantHeads("after", "a")
}

func discardRefusesMissing(s *suite) {
	r := s.alone()
	receipts := s.sendNamed("k", "published", "discarded", "pending")
	ts := r.drain()
	r.settle(ts[:2], fromLog(ts[1], dies(true, 1)))
	s.ok(s.Admin.Discard(s.ctx, act(ts[1].ID)), "discard")
	for i, receipt := range receipts {
		s.wantError("discard of a message that is "+ts[i].name(), s.Admin.Discard(s.ctx, act(receipt.ID)), store.ErrNotFound, store.ErrStateConflict)
	}
	s.wantError("discard of nothing", s.Admin.Discard(s.ctx, act(outbox.NewID())), store.ErrNotFound)
	other := act(receipts[0].ID)
	other.Sink = "no-such-sink"
	s.wantError("discard in no sink", s.Admin.Discard(s.ctx, other), store.ErrNotFound)
	for i, want := range []store.State{store.StatePublished, store.StateDiscarded, store.StatePending} {
		s.wantState(ts[i].name(), receipts[i], want)
	}
}

func discardMiddle(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b", "c")
	ts := r.park(0)
	s.ok(s.Admin.Discard(s.ctx, act(ts[1].ID)), "discard")
	head := r.wantHeads("after a discard behind it", "a")[0]
	s.want("line", parkedNames(r.followers("k", store.Place{})), []string{"a", "c"})
	r.settle(nil, fromParked(head, out()))
	r.wantHeads("then", "c")
}

func dryRuns(s *suite) {
	r := s.alone()
	s.sendNamed("k", "dead", "parked")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], dies(true, 1)), fromLog(ts[1], behind()))
	for _, t := range ts {
		a := act(t.ID)
		a.DryRun = true
		s.ok(s.Admin.Discard(s.ctx, a), "dry discard")
		if t.name() == "dead" {
			s.ok(s.Admin.Requeue(s.ctx, a, false), "dry requeue")
		} else {
			s.wantError("dry requeue", s.Admin.Requeue(s.ctx, a, false), store.ErrStateConflict)
		}
	}
	r.wantHeads("after dry runs")
	k := s.sink()
	s.want("dead and parked", []any{k.Dead, k.Parked}, []any{1, map[store.Reason]int64{store.ReasonBehind: 1}})
	if s.Audit != nil {
		s.want("audit lines", len(s.Audit(s.T)), 0)
	}
}

func actsAudited(s *suite) {
	if s.Audit == nil {
		s.lacks("a look at the audit")
		return
	}
	r := s.alone()
	s.sendNamed("k", "a", "b")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], dies(true, 1)), fromLog(ts[1], behind()))
	bare := act(ts[0].ID)
	bare.Reason = "" // a requeue needs none, and the SQL function takes none
	s.ok(s.Admin.Requeue(s.ctx, bare, false), "requeue")
	other := act(ts[1].ID)
	other.Actor, other.Reason = "bob", "sold out"
	s.ok(s.Admin.Discard(s.ctx, other), "discard")
	_ = s.Admin.Discard(s.ctx, other) // refused: no line
	s.want("audit", s.Audit(s.T), []AuditLine{
		{Actor: "ann", Action: "requeue", Sink: sinkName, ID: ts[0].ID},
		{Actor: "bob", Action: "discard", Sink: sinkName, Reason: "sold out", ID: ts[1].ID},
	})
}

func actsOfOneSink(s *suite) {
	orders, audit := s.alone(), s.joinOn(s.open(), s.long(), "audit").holdAll()
	s.sendNamed("k", "a", "b")
	for _, r := range []*relay{orders, audit} {
		ts := r.drain()
		r.settle(ts, fromLog(ts[0], dies(true, 1)), fromLog(ts[1], behind()))
	}
	id := s.corpse().ID
	s.ok(s.Admin.Discard(s.ctx, act(id)), "discard")
	orders.wantHeads("of the sink", "b")
	audit.wantHeads("of the other sink")
	m, err := s.Admin.Message(s.ctx, id)
	s.ok(err, "show")
	s.want("states", []any{m.States[0].Sink, m.States[0].State, m.States[1].Sink, m.States[1].State},
		[]any{"audit", store.StateDead, sinkName, store.StateDiscarded})
}

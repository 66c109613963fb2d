package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var lists = []spec{
	{"MessagesAreListedNewestFirst", messagesListed},
	{"ListsGoOnWhereTheyStopped", listsGoOn},
	{"MessagesAreFound", messagesFound},
	{"DeadLettersAreFound", deadFound},
	{"BadFiltersAreRefused", badFilters},
}

func infoNames(ms []store.MessageInfo) (all []string) {
	for _, m := range ms {
		all = append(all, m.EventID)
	}
	return all
}

func deadNames(ds []store.DeadInfo) (all []string) {
	for _, d := range ds {
		all = append(all, d.EventID)
	}
	return all
}

// listed is a message whose event id is its name.
func (s *suite) listed(name, key string, change func(*outbox.Message)) outbox.Message {
	m := s.message(name, key)
	m.EventID = name
	if change != nil {
		change(&m)
	}
	return m
}

func messagesListed(s *suite) {
	r := s.alone()
	s.send(s.listed("a", "k", nil), s.listed("b", "l", nil))
	s.send(s.listed("c", "k", nil))
	ts := r.drain()
	r.settle(ofKey(ts, "l"))
	list, err := s.Admin.Messages(s.ctx, store.Filter{})
	s.ok(err, "messages")
	s.want("newest first", infoNames(list.Messages), []string{"c", "b", "a"})
	s.want("next and partial", []any{list.Next, list.Partial}, []any{"", false})
	b := list.Messages[1]
	s.want("payload, its size, states", []any{b.Payload == nil, b.PayloadBytes, b.States}, []any{true, 1, []store.SinkState{{Sink: sinkName, State: store.StatePublished}}})
	m, err := s.Admin.Message(s.ctx, b.ID)
	s.ok(err, "show")
	s.want("payload of one message", string(m.Payload), "b")
	_, err = s.Admin.Message(s.ctx, outbox.NewID())
	s.wantError("show nothing", err, store.ErrNotFound)
	_, err = s.Admin.Partitions(s.ctx, "no-such-sink")
	s.wantError("partitions of no sink", err, store.ErrNotFound)
}

func listsGoOn(s *suite) {
	r := s.alone()
	var want []string
	var ms []outbox.Message
	for i := range 23 {
		name := fmt.Sprintf("%02d", i)
		want = append(want, name)
		ms = append(ms, s.listed(name, fmt.Sprint("key-", i%3), nil))
	}
	for chunk := range slices.Chunk(ms, 4) {
		s.send(chunk...)
	}
	slices.Reverse(want)
	ts := r.drain()
	var verdicts []store.Verdict
	for _, t := range ts {
		verdicts = append(verdicts, fromLog(t, dies(false, 1)))
	}
	r.settle(ts, verdicts...)
	var messages, dead []string
	for f := (store.Filter{Limit: 5}); ; {
		list, err := s.Admin.Messages(s.ctx, f)
		s.ok(err, "messages")
		if len(list.Messages) > 5 {
			s.Fatalf("a page has %d messages, want 5 at most", len(list.Messages))
		}
		messages = append(messages, infoNames(list.Messages)...)
		if f.After = list.Next; f.After == "" {
			break
		}
		s.send(s.message("newer", "")) // what is newer than the first page never shows up
	}
	s.want("pages of messages", messages, want)
	for f := (store.Filter{Limit: 5, Sink: sinkName}); ; {
		list, err := s.Admin.Dead(s.ctx, f)
		s.ok(err, "dead")
		dead = append(dead, deadNames(list.Dead)...)
		if f.After = list.Next; f.After == "" {
			break
		}
	}
	s.want("pages of dead letters", dead, want)
	var ofKey []string
	for f := (store.Filter{Limit: 2, Key: "key-1"}); ; {
		list, err := s.Admin.Messages(s.ctx, f)
		s.ok(err, "messages")
		ofKey = append(ofKey, infoNames(list.Messages)...)
		if f.After = list.Next; f.After == "" {
			break
		}
	}
	s.want("pages of a key", ofKey, []string{"22", "19", "16", "13", "10", "07", "04", "01"})
}

func messagesFound(s *suite) {
	if s.partitions < 6 {
		s.lacks("six partitions")
		return
	}
	r := s.alone()
	before := s.now()
	k := s.keys(6)
	s.send(
		s.listed("pending", k[0], nil), // never settled
		s.listed("published", k[1], func(m *outbox.Message) { m.Topic = "orders.paid" }),
		s.listed("retry", k[2], func(m *outbox.Message) { m.Type = "Other" }),
		s.listed("behind", k[2], func(m *outbox.Message) { m.CorrelationID = "cor" }),
		s.listed("dead", k[3], func(m *outbox.Message) { m.Scope = "acme" }),
		s.listed("discarded", k[4], nil),
		s.listed("scheduled", k[5], func(m *outbox.Message) { m.AvailableAt = before.Add(time.Hour) }),
	)
	ids := map[string]outbox.ID{}
	var verdicts []store.Verdict
	var done []taken
	for _, t := range r.drain() {
		ids[t.name()] = t.ID
		if t.name() != "pending" {
			done = append(done, t)
		}
		switch t.name() {
		case "retry":
			verdicts = append(verdicts, fromLog(t, retryIn(time.Hour, 2)))
		case "behind":
			verdicts = append(verdicts, fromLog(t, behind()))
		case "scheduled":
			verdicts = append(verdicts, fromLog(t, store.Verdict{To: store.Park, Reason: store.ReasonScheduled}))
		case "dead", "discarded":
			verdicts = append(verdicts, fromLog(t, dies(true, 3)))
		}
	}
	r.settle(done, verdicts...)
	s.ok(s.Admin.Discard(s.ctx, act(ids["discarded"])), "discard")
	for _, c := range []struct {
		name   string
		filter store.Filter
		want   []string
	}{
		{"topic", store.Filter{Topic: "orders.paid"}, []string{"published"}},
		{"type", store.Filter{Type: "Other"}, []string{"retry"}},
		{"key", store.Filter{Key: k[2]}, []string{"behind", "retry"}},
		{"event id", store.Filter{EventID: "dead"}, []string{"dead"}},
		{"correlation id", store.Filter{CorrelationID: "cor"}, []string{"behind"}},
		{"scope", store.Filter{Scope: "acme"}, []string{"dead"}},
		{"id", store.Filter{ID: ids["retry"]}, []string{"retry"}},
		{"id and another key", store.Filter{ID: ids["retry"], Key: k[0]}, nil},
		{"pending", store.Filter{State: store.StatePending}, []string{"pending"}},
		{"published", store.Filter{State: store.StatePublished}, []string{"published"}},
		{"parked", store.Filter{State: store.StateParked}, []string{"scheduled", "behind", "retry"}},
		{"dead", store.Filter{State: store.StateDead}, []string{"dead"}},
		{"discarded", store.Filter{State: store.StateDiscarded}, []string{"discarded"}},
		{"reason", store.Filter{Reason: store.ReasonScheduled}, []string{"scheduled"}},
		{"code", store.Filter{Code: "onward/rejected"}, []string{"retry"}},
		{"attempts", store.Filter{Attempts: 2}, []string{"dead", "retry"}},
		{"more attempts", store.Filter{Attempts: 3}, []string{"dead"}},
		{"key and state", store.Filter{Key: k[2], State: store.StateParked, Attempts: 1}, []string{"retry"}},
		{"sink and state", store.Filter{Sink: sinkName, State: store.StateDead}, []string{"dead"}},
		{"until then", store.Filter{Until: before}, nil},
		{"since then", store.Filter{Since: before, Topic: "orders.paid"}, []string{"published"}},
		{"nothing", store.Filter{Topic: "none"}, nil},
	} {
		list, err := s.Admin.Messages(s.ctx, c.filter)
		s.ok(err, c.name)
		s.want("messages by "+c.name, infoNames(list.Messages), c.want)
	}
	_, err := s.Admin.Messages(s.ctx, store.Filter{Sink: "no-such-sink"})
	s.wantError("messages of no sink", err, store.ErrNotFound)
}

func deadFound(s *suite) {
	r := s.alone()
	before := s.now()
	s.send(s.listed("a", "k", nil), s.listed("b", "l", func(m *outbox.Message) { m.Topic = "orders.paid" }))
	ts := r.drain()
	other := dies(false, 5)
	other.Code = "onward/rejected"
	byName := map[string]taken{}
	for _, t := range ts {
		byName[t.name()] = t
	}
	r.settle(ts, fromLog(byName["a"], dies(true, 2)), fromLog(byName["b"], other))
	s.sendNamed("k", "c", "d")
	ts = r.drain()
	r.settle(ts, fromLog(ts[0], behind()), fromLog(ts[1], behind()))
	for _, c := range []struct {
		name   string
		filter store.Filter
		want   []string
	}{
		{"nothing in particular", store.Filter{}, []string{"b", "a"}},
		{"key", store.Filter{Key: "k"}, []string{"a"}},
		{"topic", store.Filter{Topic: "orders.paid"}, []string{"b"}},
		{"code", store.Filter{Code: "onward/rejected"}, []string{"b"}},
		{"attempts", store.Filter{Attempts: 3}, []string{"b"}},
		{"sink", store.Filter{Sink: sinkName, Limit: 1}, []string{"b"}},
		{"state", store.Filter{State: store.StateParked}, nil},
		{"since", store.Filter{Since: before}, []string{"b", "a"}},
		{"until", store.Filter{Until: before}, nil},
	} {
		list, err := s.Admin.Dead(s.ctx, c.filter)
		s.ok(err, c.name)
		s.want("dead letters by "+c.name, deadNames(list.Dead), c.want)
		for _, d := range list.Dead {
			s.want("payload, its size, sink", []any{d.Payload == nil, d.PayloadBytes, d.Sink}, []any{true, 1, sinkName})
		}
	}
	list, err := s.Admin.Dead(s.ctx, store.Filter{ID: byName["a"].ID})
	s.ok(err, "dead by id")
	if len(list.Dead) != 1 {
		s.Fatalf("%d dead letters have an id, want 1", len(list.Dead))
	}
	d := list.Dead[0]
	s.want("payload, blocks, behind, tries", []any{string(d.Payload), d.Blocks, d.Behind, len(d.Tries)}, []any{"a", true, 2, 1})
}

func badFilters(s *suite) {
	s.alone()
	now := s.now()
	for name, f := range map[string]store.Filter{
		"limit": {Limit: 10_001}, "negative limit": {Limit: -1}, "state": {State: "lost"}, "reason": {Reason: "bored"},
		"place": {After: "nowhere"}, "times": {Since: now, Until: now.Add(-time.Second)}, "attempts": {Attempts: -1},
	} {
		_, err := s.Admin.Messages(s.ctx, f)
		s.wantError("messages by a bad "+name, err, store.ErrFilterInvalid)
		_, err = s.Admin.Dead(s.ctx, f)
		s.wantError("dead letters by a bad "+name, err, store.ErrFilterInvalid)
	}
}

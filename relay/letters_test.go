package relay_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// headers of a message that arrived, in lines.
func headers(m membroker.Message) string {
	var b strings.Builder
	for _, h := range m.Headers {
		b.WriteString(h.Name + ": " + h.Value + "\n")
	}
	return b.String()
}

// The copy says what died and why; nothing else does. What was rejected at once, what failed too often and what its topic's rule
// refused, all have one.
func TestADeadLetterIsCopiedToItsTopicWithItsCause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		c := s.config()
		c.Sinks[0].DeadTopic, c.Sinks[0].Retry.Attempts = "dead.{{.Topic}}", 2
		c.Topics = []relay.Topic{{Match: "keyed", RequireKey: true}}
		refusal := errors.New("no\r\nsuch " + strings.Repeat("ü", 400))
		s.broker.SetFaults(
			membroker.When(func(e broker.Envelope) bool { return e.Topic == "bad" }, membroker.Fault{Outcome: broker.Rejected, Err: refusal}),
			membroker.When(func(e broker.Envelope) bool { return e.Topic == "weak" }, membroker.Fault{Outcome: broker.Retry}),
		)
		stop := s.run(c)
		bad, weak, keyless := s.write("bad", "k", 1)[0], s.write("weak", "", 1)[0], s.write("keyed", "", 1)[0]
		s.write("good", "other", 1)
		s.until(func() bool { return s.broker.Len() == 4 && s.dead() == 3 })
		wait(time.Minute)
		stop()
		if n := s.broker.Len(); n != 4 {
			t.Errorf("%d messages arrived, want the good one and three copies", n)
		}
		if m := s.broker.Messages("good")[0]; strings.Contains(headers(m), "onward-dead") {
			t.Errorf("a message that was taken has a cause:\n%s", headers(m))
		}
		for topic, want := range map[string][]string{
			"dead.bad":   {"onward-dead-id: " + bad.String(), "onward-dead-topic: bad", "onward-dead-key: k", "onward-dead-code: onward/rejected", "onward-dead-error: no  such ü", "onward-dead-attempts: 1", "onward-dead-sink: test"},
			"dead.weak":  {"onward-dead-id: " + weak.String(), "onward-dead-code: onward/attempts-exhausted", "onward-dead-attempts: 2"},
			"dead.keyed": {"onward-dead-id: " + keyless.String(), "onward-dead-code: onward/key-required", "onward-dead-attempts: 0"},
		} {
			ms := s.broker.Messages(topic)
			if len(ms) != 1 {
				t.Errorf("%s has %d messages, want 1", topic, len(ms))
				continue
			}
			m := ms[0]
			for _, line := range want {
				if !strings.Contains(headers(m), line) {
					t.Errorf("%s lacks %q:\n%s", topic, line, headers(m))
				}
			}
			if m.Key != "" || m.Epoch == 0 || len(m.Payload) != 1 || strings.Contains(headers(m), "onward-id: "+want[0][len("onward-dead-id: "):]) {
				t.Errorf("the copy has key %q, epoch %d, %d bytes:\n%s", m.Key, m.Epoch, len(m.Payload), headers(m))
			}
			for _, h := range m.Headers {
				if len(h.Value) > 500 {
					t.Errorf("%s has %d bytes", h.Name, len(h.Value))
				}
			}
		}
	})
}

// A dead topic that refuses, hangs or panics: the message is a dead letter all the same, soon, and its key goes on.
func TestADeadTopicThatTakesNothingHoldsNoKey(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]membroker.Fault{
		"rejected": {Outcome: broker.Rejected}, "unavailable": {Outcome: broker.Unavailable}, "silent": {Stall: true}, "panic": {Panic: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				var log bytes.Buffer
				c := s.config()
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
				c.Sinks[0].DeadTopic, c.Sinks[0].OnDead = "dead", "skip"
				s.broker.SetFaults(
					membroker.When(func(e broker.Envelope) bool { return e.Topic == "dead" }, fault),
					membroker.When(func(e broker.Envelope) bool { return e.Topic == "bad" }, membroker.Fault{Outcome: broker.Rejected}),
				)
				stop := s.run(c)
				s.until(func() bool { return s.renews.any() })
				from := s.after()
				s.write("bad", "k", 1)
				s.write("good", "k", 1)
				if took := s.until(func() bool { return s.dead() == 1 && s.broker.Len() == 1 }) - from; took > 3*time.Second {
					t.Errorf("it took %s", took)
				}
				wait(time.Minute)
				stop()
				if n := s.broker.Len(); n != 1 || strings.Count(log.String(), "dead letter was not published to its topic") != 1 {
					t.Errorf("%d messages arrived; the log:\n%s", n, log.String())
				}
			})
		})
	}
}

// A settlement that is sent again publishes no copy again; one that a crash forgets does, under the same id.
func TestACopyIsPublishedOnceForASettlement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		c := s.config()
		c.Sinks[0].DeadTopic = "dead"
		s.fail(membroker.Fault{Outcome: broker.Rejected}, "bad")
		failures, lost := 3, false
		s.db.SetFault(func(call memstore.Call) memstore.Fault { // under the database's lock
			if call.Op != memstore.OpSettle || failures == 0 {
				return memstore.Fault{}
			}
			if failures--; failures == 0 {
				lost = true
				return memstore.Fault{Err: store.ErrReload}
			}
			return memstore.Fault{Err: errors.New("again")}
		})
		stop := s.run(c)
		s.write("bad", "k", 1)
		s.until(func() bool { return s.dead() == 1 })
		wait(time.Minute)
		stop()
		copies := s.broker.Messages("dead")
		if len(copies) != 2 || !lost || copies[0].ID != copies[1].ID {
			t.Errorf("the copies are %+v: want one before the settlement was lost and one after, of one id", copies)
		}
	})
}

func TestADeadTopicIsCheckedAtStart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c := s.config()
	c.Sinks[0].DeadTopic = "dead.{{.Tpoic}}"
	if _, err := relay.New(c); !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(err.Error(), "Sinks[0].DeadTopic") || !strings.Contains(err.Error(), "names .Tpoic") {
		t.Errorf("got %v", err)
	}
}

package relay_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
)

// lockedText takes a log from several goroutines.
type lockedText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// examinedPublisher is one whose server has settings.
type examinedPublisher struct {
	broker.Publisher
	severity *atomic.Int64 // of its only finding; 0: it does not answer
	asked    *atomic.Int64
}

func (p examinedPublisher) Examine(_ context.Context, q doctor.Question) (doctor.Diagnosis, error) {
	p.asked.Add(1)
	s := doctor.Severity(p.severity.Load()) //nolint:gosec // one of five
	if s == 0 {
		return doctor.Diagnosis{}, errors.New("refused")
	}
	return doctor.Diagnosis{Worth: "not much", Findings: []doctor.Finding{{Check: "storage", Where: "stream A", Severity: s, Read: "storage = memory", Means: "a restart loses it", Fix: "store it " + q.Retry.String()}}}, nil
}

// examinedStage is a relay whose broker has a setting of this severity.
func examinedStage(t *testing.T, policy string, s doctor.Severity) (*stage, relay.Config, examinedPublisher, *lockedText) {
	t.Helper()
	st := newStage(t)
	c, log := st.config(), &lockedText{}
	p := examinedPublisher{c.Sinks[0].Publisher, new(atomic.Int64), new(atomic.Int64)}
	p.severity.Store(int64(s))
	c.Sinks[0].Publisher, c.OnUnsafe, c.Logger = p, policy, slog.New(slog.NewTextHandler(log, nil))
	return st, c, p, log
}

// A relay says at its start what is wrong, and works.
func TestARelayWarnsOfUnsafeSettings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, policy := range []string{"", relay.OnUnsafeWarn} {
			s, c, p, log := examinedStage(t, policy, doctor.Unsafe)
			stop := s.run(c)
			s.write("a", "k", 1)
			s.until(s.arrived(1))
			synctest.Wait()
			stop()
			for _, want := range []string{"level=WARN", `what="sink test"`, "severity=unsafe", "check=storage", `where="stream A"`, `read="storage = memory"`, `means="a restart loses it"`, `fix="store it 10m10s"`} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("%q: the log lacks %s:\n%s", policy, want, log)
				}
			}
			if n := p.asked.Load(); n != 1 {
				t.Errorf("%q: asked %d times", policy, n)
			}
		}
	})
}

// A broker that does not answer yet is examined when it does; that holds nothing up.
func TestABrokerThatIsAwayIsExaminedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c, p, log := examinedStage(t, relay.OnUnsafeWarn, 0)
		stop := s.run(c)
		s.write("a", "k", 1)
		s.until(s.arrived(1))
		p.severity.Store(int64(doctor.Warning))
		s.until(func() bool { return strings.Contains(log.String(), "severity=warning") })
		if took := stop(); took > time.Second {
			t.Errorf("stopping took %v", took)
		}
	})
}

// Where it is to refuse, nothing is published before every server has answered, and nothing at all where one is unsafe.
func TestARelayRefusesUnsafeSettingsWhereItIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c, _, _ := examinedStage(t, relay.OnUnsafeRefuse, doctor.Unsafe)
		s.write("a", "k", 1)
		for what, run := range map[string]func(*relay.Relay) error{
			"Run": func(r *relay.Relay) error { return r.Run(s.Context()) }, "RunOnce": func(r *relay.Relay) error { return r.RunOnce(s.Context()) },
		} {
			r, err := relay.New(c)
			if err != nil {
				t.Fatal(err)
			}
			err = run(r)
			if !errors.Is(err, relay.ErrUnsafe) || !strings.Contains(err.Error(), "stream A storage = memory") || !strings.HasPrefix(outbox.Hint(err), "store it") {
				t.Errorf("%s: %v, hint %q", what, err, outbox.Hint(err))
			}
		}
		if s.broker.Len() != 0 {
			t.Error("it has published")
		}

		s, c, p, _ := examinedStage(t, relay.OnUnsafeRefuse, 0)
		stop := s.run(c)
		s.write("a", "k", 1)
		wait(10 * time.Second)
		if s.broker.Len() != 0 || p.asked.Load() < 3 {
			t.Errorf("before the broker answered, it published %d, and asked %d times", s.broker.Len(), p.asked.Load())
		}
		p.severity.Store(int64(doctor.Warning))
		s.until(s.arrived(1))
		stop()

		s, c, p, _ = examinedStage(t, relay.OnUnsafeRefuse, 0)
		stop = s.run(c)
		wait(10 * time.Second)
		if took := stop(); took > time.Second || p.asked.Load() == 0 {
			t.Errorf("stopping while it waits took %v", took)
		}
	})
}

// A pass of cron would say the same each minute, and one that ignores it does not look.
func TestARelayThatIgnoresItDoesNotLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c, p, log := examinedStage(t, relay.OnUnsafeIgnore, doctor.Unsafe)
		stop := s.run(c)
		s.write("a", "k", 1)
		s.until(s.arrived(1))
		stop()
		s, c2, p2, log2 := examinedStage(t, relay.OnUnsafeWarn, doctor.Unsafe)
		s.passes(c2, time.Minute)
		if p.asked.Load()+p2.asked.Load() != 0 || strings.Contains(log.String()+log2.String(), "settings") {
			t.Errorf("asked %d and %d times, and said %s%s", p.asked.Load(), p2.asked.Load(), log, log2)
		}
		if _, err := relay.New(relay.Config{OnUnsafe: "panic"}); err == nil || !strings.Contains(err.Error(), `OnUnsafe is "panic"`) {
			t.Errorf("another word: %v", err)
		}
	})
}

// sampledStore shows what was written lately.
type sampledStore struct {
	store.Store
	topics []string
}

func (s sampledStore) Newest(_ context.Context, most int) (all []*outbox.Record, err error) {
	for _, t := range s.topics[:min(most, len(s.topics))] {
		all = append(all, &outbox.Record{Message: outbox.Message{Topic: t, Type: "seen"}})
	}
	return all, nil
}

// A publisher is asked about the topics of the newest messages that its sink takes, once each, about those that the sink names,
// and about those that are asked for.
func TestSubjectsHaveTheTopicsThatTheSinkTakes(t *testing.T) {
	t.Parallel()
	c := relay.Config{
		Sinks: []relay.Sink{
			{Name: "orders", Selection: outbox.Selection{Topics: []outbox.Pattern{"orders.*", "invoices"}, Exclude: []outbox.Pattern{"orders.test"}}},
			{Name: "off", Disabled: true},
			{Name: "all", Retry: core.Retry{Max: time.Second}, PublishTimeout: time.Second},
		},
		Topics: []relay.Topic{{Match: "orders.paid", MaxPayload: 5000}, {Match: ">", MaxPayload: outbox.MaxPayload}},
	}
	all := relay.Subjects(t.Context(), &c, sampledStore{topics: []string{"orders.paid", "orders.test", "orders.paid", "mails"}}, []string{"orders.made", "parcels"})
	var got []string
	for _, s := range all {
		text := s.Kind + " " + s.Name
		for _, r := range s.Question.Samples {
			text += " " + r.Topic + "/" + r.Type
		}
		got = append(got, text)
	}
	want := []string{
		"database ", "sink orders orders.paid/seen invoices/invoices orders.made/orders.made",
		"sink all orders.paid/seen orders.test/seen mails/seen orders.made/orders.made parcels/parcels",
	}
	if !slices.Equal(got, want) {
		t.Errorf("subjects are\n%q, want\n%q", got, want)
	}
	if q := all[1].Question; q.MaxPayload != 5000 || q.Retry != 10*time.Minute+10*time.Second {
		t.Errorf("orders is asked %+v", q)
	}
	if q := all[2].Question; q.Retry != 31*time.Second { // the breaker's
		t.Errorf("all is asked %+v", q)
	}
}

package relay

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
)

// A broker whose check is good, and that takes nothing, is as bad as one that is away: who reads the log is told, with the cause,
// again while it lasts, and when it is over.
func TestABrokerThatTakesNothingThoughItsCheckIsGoodIsSaid(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	f := (&Relay{log: slog.New(slog.NewTextHandler(&b, nil))}).newFeed(&Sink{Name: "orders"}, store.Info{})
	turn := &turn{feed: f, machine: core.New(core.Rules{})}
	start := time.Now()
	answer := func(after time.Duration, outcomes ...broker.Outcome) string {
		b.Reset()
		var as []core.Answer
		for _, o := range outcomes {
			r := broker.Result{Outcome: o}
			if o != broker.Accepted {
				r.Code, r.Err = "onward/publish-timeout", &outbox.Error{Detail: "no answer", Hint: "look at it", Err: errors.New("timeout")}
			}
			as = append(as, core.Answer{Result: r})
		}
		turn.noteAnswers(as, start.Add(after))
		return b.String()
	}
	quiet := func(text string) {
		t.Helper()
		if text != "" {
			t.Errorf("it said %q", text)
		}
	}
	quiet(answer(0, broker.Uncertain))
	quiet(answer(4*time.Second, broker.Uncertain, broker.Accepted)) // it was one
	quiet(answer(6*time.Second, broker.Unavailable))
	quiet(answer(10*time.Second, broker.Uncertain))
	text := answer(12*time.Second, broker.Unavailable, broker.Uncertain)
	for _, want := range []string{"level=WARN", "takes no message", "sink=orders", "for=6s", "outcome=uncertain", "code=onward/publish-timeout", "no answer", `hint="look at it"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q: %s", want, text)
		}
	}
	quiet(answer(13*time.Second, broker.Uncertain))
	if text := answer(23*time.Second, broker.Uncertain); !strings.Contains(text, "for=17s") {
		t.Errorf("after ten seconds more: %q", text)
	}
	if text := answer(24*time.Second, broker.Accepted); !strings.Contains(text, "takes messages again") || !strings.Contains(text, "after=18s") {
		t.Errorf("at the end: %q", text)
	}
	quiet(answer(25*time.Second, broker.Rejected))
	turn.absent = true // its check says so already
	quiet(answer(26*time.Second, broker.Unavailable))
	quiet(answer(40*time.Second, broker.Unavailable))
}

package relay

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
)

// Who begins to read the log at night sees why nothing is published, and for how long.
func TestALongAbsenceIsToldAgainWithItsCause(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	f := (&Relay{log: slog.New(slog.NewTextHandler(&b, nil))}).newFeed(&Sink{Name: "orders"}, store.Info{})
	turn := &turn{feed: f, machine: core.New(core.Rules{})} // whose breaker is open at first
	turn.noteProbe(errors.New("no route to host"))
	turn.noteProbe(&outbox.Error{Detail: "stream ORDERS is not there", Hint: "make it"})
	b.Reset()
	turn.since, turn.quiet = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	turn.noteBroker(time.Now())
	for _, want := range []string{"still waiting for the broker", "sink=orders", "stream ORDERS is not there", `hint="make it"`, "for=1h0m0s"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the log lacks %q: %s", want, b.String())
		}
	}
	b.Reset()
	turn.noteBroker(time.Now())
	if b.Len() > 0 {
		t.Errorf("at once again: %s", b.String())
	}
}

package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/relay"
)

// rounds counts what it is told.
type rounds int

func (r *rounds) Round(relay.Round) { *r++ }

// The log has a line a sink and window, with the sums; calm is said once.
func TestFiguresAreGatheredOverTheWindow(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(groups []string, at slog.Attr) slog.Attr {
		if at.Key == slog.TimeKey || at.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return readable(groups, at)
	}}))
	var told rounds
	o := observe(log, 3*time.Second, &told)
	tell := func(r relay.Round) {
		r.Took, r.Owned, r.Relays = time.Second, 64, 2
		o.Round(r)
	}
	for range 3 {
		tell(relay.Round{Sink: "orders", Published: 100, Duplicates: 1, Retried: 2, Parked: 3, Dead: 1, InFlight: 7, BreakerOpen: true})
	}
	for range 2 {
		tell(relay.Round{Sink: "audit", Published: 1}) // its window is not over
	}
	for range 9 {
		tell(relay.Round{Sink: "orders"})
	}
	tell(relay.Round{Sink: "audit", Published: 5})
	want := `msg=figures sink=orders over=3s published=300 a_second=100 duplicates=3 retried=6 parked=9 dead=3 in_memory=7 partitions=64 relays=2 breaker=open
msg=figures sink=orders over=3s published=0 a_second=0 duplicates=0 retried=0 parked=0 dead=0 in_memory=0 partitions=64 relays=2 breaker=closed
msg=figures sink=audit over=3s published=7 a_second=2 duplicates=0 retried=0 parked=0 dead=0 in_memory=0 partitions=64 relays=2 breaker=closed
`
	if got := out.String(); got != want {
		t.Errorf("the log says\n%s\nwant\n%s", got, want)
	}
	if told != 15 {
		t.Errorf("the observer besides was told %d times, want 15", told)
	}
	if next := observe(log, 0, &told); next != relay.Observer(&told) {
		t.Error("without a window there are figures")
	}
}

// A window is as long as the flag says; at a terminal there is one without the flag.
func TestTheWindowOfFigures(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags    relayFlags
		terminal bool
		want     time.Duration
	}{
		{relayFlags{}, false, 0},
		{relayFlags{}, true, 5 * time.Second},
		{relayFlags{window: 2}, false, 2 * time.Second},
		{relayFlags{window: 60}, true, time.Minute},
		{relayFlags{json: true}, true, 0},
		{relayFlags{json: true, window: 2}, true, 2 * time.Second},
		{relayFlags{once: true}, true, 0},
	} {
		if got := c.flags.figures(c.terminal); got != c.want {
			t.Errorf("%+v, terminal %v: %v, want %v", c.flags, c.terminal, got, c.want)
		}
	}
	if strings.TrimSpace(newRelay(&app{}).Flag("window").Usage) == "" {
		t.Error("--window is not explained")
	}
}

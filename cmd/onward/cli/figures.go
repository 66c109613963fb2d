package cli

import (
	"log/slog"
	"time"

	"github.com/onwardhq/onward/relay"
)

// figures says in the log what was done in each window of time, a sink a line. A sink that does nothing says so once. The relay
// calls it one call after the other.
type figures struct {
	log    *slog.Logger
	window time.Duration
	next   relay.Observer // told as well; nil: nobody
	sums   map[string]*relay.Round
	calm   map[string]bool // nothing was done in the window before, and that was said
}

// usualWindow is the one of a relay at a terminal.
const usualWindow = 5 * time.Second

// observe adds figures over a window to what observes a relay already; without a window there are none.
func observe(log *slog.Logger, window time.Duration, next relay.Observer) relay.Observer {
	if window == 0 {
		return next
	}
	return &figures{log: log, window: window, next: next, sums: map[string]*relay.Round{}, calm: map[string]bool{}}
}

// Round adds a round to its window.
func (f *figures) Round(r relay.Round) {
	if f.next != nil {
		f.next.Round(r)
	}
	sum := f.sums[r.Sink]
	if sum == nil {
		sum = &relay.Round{Sink: r.Sink}
		f.sums[r.Sink] = sum
	}
	sum.Published += r.Published
	sum.Duplicates += r.Duplicates
	sum.Retried += r.Retried
	sum.Parked += r.Parked
	sum.Dead += r.Dead
	if sum.Took += r.Took; sum.Took < f.window {
		return
	}
	f.sums[r.Sink] = nil
	idle := sum.Published+sum.Retried+sum.Parked+sum.Dead+r.InFlight == 0
	if idle && f.calm[r.Sink] {
		return
	}
	f.calm[r.Sink] = idle
	breaker := "closed"
	if r.BreakerOpen {
		breaker = "open"
	}
	f.log.Info("figures", "sink", r.Sink, "over", sum.Took.Round(100*time.Millisecond), "published", sum.Published,
		"a_second", int(float64(sum.Published)/sum.Took.Seconds()+0.5), "duplicates", sum.Duplicates, "retried", sum.Retried,
		"parked", sum.Parked, "dead", sum.Dead, "in_memory", r.InFlight, "partitions", r.Owned, "relays", r.Relays, "breaker", breaker)
}

package cli

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store"
)

// roundView is a line of `relay --json`: what happened since the line before.
type roundView struct {
	TS                 time.Time `json:"ts"`
	Sink               string    `json:"sink"`
	DurationMS         float64   `json:"duration_ms"`
	Read               int       `json:"read"`
	Published          int       `json:"published"`
	Duplicates         int       `json:"duplicates"`
	Retried            int       `json:"retried"`
	Parked             int       `json:"parked"`
	Dead               int       `json:"dead"`
	Settled            int       `json:"settled"`
	PartitionsOwned    int       `json:"partitions_owned"`
	PartitionsGained   int       `json:"partitions_gained"`
	PartitionsReleased int       `json:"partitions_released"`
	Relays             int       `json:"relays"`
	Backlog            *int64    `json:"backlog"` // of the whole sink; null: not known
	BacklogAtLeast     bool      `json:"backlog_at_least,omitempty"`
	LagMS              *float64  `json:"lag_ms"`
	Breaker            string    `json:"breaker"` // "closed" or "open"
}

// Lines that a slow reader has not taken yet. Further ones are left out: it must not hold the relay up.
const mostLines = 60

// jsonRounds writes a line for each round. The relay calls it from one goroutine.
type jsonRounds struct {
	now    func() time.Time
	lines  chan roundView
	status atomic.Pointer[store.Status] // read not long ago; nil: it could not be read
}

// writeRounds makes what writes the lines; end waits a second for those that are left.
func (a *app) writeRounds(admin store.Admin) (j *jsonRounds, end func()) {
	j = &jsonRounds{now: a.env.Now, lines: make(chan roundView, mostLines)}
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	reading.Go(func() { j.read(ctx, admin) })
	written := make(chan struct{})
	go func() {
		defer close(written)
		j.write(a.env.Out)
	}()
	return j, func() {
		cancel()
		reading.Wait() // before the pool is closed
		close(j.lines)
		select {
		case <-written:
		case <-time.After(time.Second): // nobody reads: the goroutine ends with the process
		}
	}
}

// read keeps the status up to date: once a second, and more seldom where it takes long, so that it stays a small part of
// what the database does.
func (j *jsonRounds) read(ctx context.Context, admin store.Admin) {
	for ctx.Err() == nil {
		began := time.Now()
		s, err := admin.Status(ctx)
		if err == nil {
			j.status.Store(&s)
		} else {
			j.status.Store(nil)
		}
		timer := time.NewTimer(max(time.Second, 20*time.Since(began)))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

// write ends when there are no more lines. A reader that went away is no reason to stop publishing.
func (j *jsonRounds) write(w io.Writer) {
	encoder := json.NewEncoder(w)
	for line := range j.lines {
		_ = encoder.Encode(line)
	}
}

// Round hands a line over.
func (j *jsonRounds) Round(r relay.Round) {
	line := roundView{
		TS: j.now().UTC(), Sink: r.Sink, DurationMS: millis(r.Took), Read: r.Read, Published: r.Published, Duplicates: r.Duplicates,
		Retried: r.Retried, Parked: r.Parked, Dead: r.Dead, Settled: r.Settled, PartitionsOwned: r.Owned,
		PartitionsGained: r.Gained, PartitionsReleased: r.Released, Relays: r.Relays, Breaker: "closed",
	}
	if r.BreakerOpen {
		line.Breaker = "open"
	}
	if s := j.status.Load(); s != nil {
		for _, sink := range s.Sinks {
			if sink.Name == r.Sink {
				lag := millis(sink.Lag)
				line.Backlog, line.BacklogAtLeast, line.LagMS = &sink.Backlog, sink.BacklogAtLeast, &lag
			}
		}
	}
	select {
	case j.lines <- line:
	default:
	}
}

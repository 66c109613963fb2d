package demo

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/onwardhq/onward/store"
)

// Mood is how an event is painted.
type Mood string

// The moods.
const (
	Plain Mood = "plain"
	Good  Mood = "good"
	Bad   Mood = "bad"
	Act   Mood = "act" // what the demo does to the system
)

// Event is what just happened.
type Event struct {
	At   time.Duration // since the service began
	Text string
	Mood Mood
}

// SinkLine is a sink in the picture.
type SinkLine struct {
	Name                  string
	Backlog, Parked, Dead int64
	Lag                   time.Duration
	Published             int64
	Owner                 string // the relay that has its lease; empty: none
}

// RelayLine is a relay in the picture.
type RelayLine struct {
	Name      string
	State     string // "killed", "stopped", ...; empty: it runs
	Published int    // messages that the stream has confirmed to it
	Again     int    // of them the stream had already
	Waits     bool   // for the broker
	LastWords string
	since     time.Time // of State
}

// Scene is all that a picture shows.
type Scene struct {
	At, For    time.Duration
	Phase      string // what goes on: "starts", "runs", "finishes", "is proved"
	Seed       uint64
	Rate       int
	Fault      string
	Written    int // committed
	RolledBack int
	Published  int64
	Backlog    int64
	Lag        time.Duration
	Parked     int64
	Dead       int64
	Stopped    bool // the broker
	Sinks      []SinkLine
	Relays     []RelayLine
	Events     []Event

	// A value each half second, the newest last.
	WrittenRates, PublishedRates, Backlogs []float64
}

// board holds the scene. Everybody may write to it.
type board struct {
	mu      sync.Mutex
	scene   Scene
	began   time.Time   // of the service; zero: not yet
	report  func(Event) // told of each event
	sampled struct {
		at        time.Time
		written   int
		published int64
	}
}

func newBoard(c Config, report func(Event)) *board {
	b := &board{scene: Scene{For: c.For, Seed: c.Seed, Rate: c.Rate, Fault: string(c.Fault), Phase: "starts"}, report: report}
	for _, region := range Regions {
		b.scene.Sinks = append(b.scene.Sinks, SinkLine{Name: region})
	}
	return b
}

// look returns the scene as it is now.
func (b *board) look() Scene {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.scene
	s.At = b.since()
	s.Sinks, s.Relays, s.Events = slices.Clone(s.Sinks), slices.Clone(s.Relays), slices.Clone(s.Events)
	s.WrittenRates, s.PublishedRates, s.Backlogs = slices.Clone(s.WrittenRates), slices.Clone(s.PublishedRates), slices.Clone(s.Backlogs)
	return s
}

func (b *board) since() time.Duration {
	if b.began.IsZero() {
		return 0
	}
	return time.Since(b.began)
}

// begin starts the clock.
func (b *board) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began = time.Now()
	b.sampled.at = b.began
	b.scene.Phase = "runs"
}

func (b *board) phase(phase string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scene.Phase = phase
}

// happened adds an event.
func (b *board) happened(mood Mood, format string, args ...any) {
	b.mu.Lock()
	e := Event{At: b.since(), Text: fmt.Sprintf(format, args...), Mood: mood}
	b.scene.Events = append(b.scene.Events, e)
	b.mu.Unlock()
	b.report(e)
}

func (b *board) wrote(committed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if committed {
		b.scene.Written++
	} else {
		b.scene.RolledBack++
	}
}

func (b *board) relay(name string) *RelayLine {
	i := slices.IndexFunc(b.scene.Relays, func(r RelayLine) bool { return r.Name == name })
	if i < 0 {
		i = len(b.scene.Relays)
		b.scene.Relays = append(b.scene.Relays, RelayLine{Name: name})
	}
	return &b.scene.Relays[i]
}

// published takes what a relay did on a sink within the last second.
func (b *board) published(relay, _ string, n, again int, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.relay(relay)
	r.Published += n
	r.Again += again
	r.Waits = waits
}

// said takes a line of a relay's log.
func (b *board) said(relay, text, cause string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.relay(relay)
	r.LastWords = text
	if cause != "" {
		r.LastWords += ": " + cause
	}
}

// relayIs notes what became of a relay; "": it runs.
func (b *board) relayIs(name, state string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.relay(name)
	r.State, r.Waits, r.since = state, false, time.Now()
}

// serves reports whether a relay has a sink, as far as the outbox was looked at.
func (b *board) serves(relay string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.scene.Sinks, func(s SinkLine) bool { return s.Owner == relay })
}

func (b *board) brokerIs(stopped bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scene.Stopped = stopped
}

// saw takes what the outbox tells of itself, and returns the take-overs since the last time.
func (b *board) saw(status *store.Status, owners map[string]string) (taken []takeOver) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.scene
	s.Backlog, s.Parked, s.Dead, s.Published, s.Lag = 0, 0, 0, 0, 0
	for i := range s.Sinks {
		line := &s.Sinks[i]
		for k := range status.Sinks {
			of := &status.Sinks[k]
			if of.Name != line.Name {
				continue
			}
			line.Backlog, line.Lag, line.Dead, line.Published = of.Backlog, of.Lag, of.Dead, of.Published
			line.Parked = 0
			for _, n := range of.Parked {
				line.Parked += n
			}
		}
		if now := owners[line.Name]; now != line.Owner {
			if line.Owner != "" && now != "" {
				taken = append(taken, takeOver{line.Name, line.Owner, now, time.Since(b.relay(line.Owner).since)})
			}
			if now != "" { // a sink that nobody has is still called the last one's
				line.Owner = now
			}
		}
		s.Backlog += line.Backlog
		s.Parked += line.Parked
		s.Dead += line.Dead
		s.Published += line.Published
		s.Lag = max(s.Lag, line.Lag)
	}
	b.sample()
	return taken
}

// takeOver is a sink that went from one relay to another.
type takeOver struct {
	sink, from, to string
	after          time.Duration // since the first one was ended
}

const (
	sampleEvery = 500 * time.Millisecond
	mostSamples = 240
)

// sample adds to the curves.
func (b *board) sample() {
	now := time.Now()
	took := now.Sub(b.sampled.at)
	if b.began.IsZero() || took < sampleEvery {
		return
	}
	s := &b.scene
	add := func(curve *[]float64, value float64) {
		*curve = append(*curve, value)
		if n := len(*curve); n > mostSamples {
			*curve = slices.Delete(*curve, 0, n-mostSamples)
		}
	}
	add(&s.WrittenRates, float64(s.Written-b.sampled.written)/took.Seconds())
	add(&s.PublishedRates, float64(s.Published-b.sampled.published)/took.Seconds())
	add(&s.Backlogs, float64(s.Backlog))
	b.sampled.at, b.sampled.written, b.sampled.published = now, s.Written, s.Published
}

package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onwardhq/onward/outbox"
)

// ErrPauseInvalid is a pause that cannot be: of an unknown kind, without a name, without a future.
var ErrPauseInvalid = &outbox.Error{Code: "onward/pause-invalid", Detail: "there can be no such pause"}

// PauseKind says what a pause holds.
type PauseKind string

// The kinds.
const (
	PauseSink  PauseKind = "sink"  // everything of the sink
	PauseTopic PauseKind = "topic" // messages of the topics that its name, a Pattern, selects
	PauseKey   PauseKind = "key"   // messages of one key
)

// MostPauses is how many pauses a sink has at most: relays ask for all of them twice a second.
const MostPauses = 1000

// Pause holds messages of a sink back until it ends. Relays know of it within a second. A paused sink publishes nothing,
// and its cursors stand still. A message of a paused topic or key is parked as it comes by, and so are the later ones of
// its key, in their order; all others go on. Nothing that is paused uses up an attempt.
type Pause struct {
	ID        int64      `json:"-"` // of this one; its kind and name may be paused again later
	Sink      string     `json:"sink"`
	Kind      PauseKind  `json:"kind"`
	Name      string     `json:"name,omitempty"` // a pattern of topics, or a key; empty with PauseSink
	Reason    string     `json:"reason"`
	Actor     string     `json:"actor"`                // who
	CreatedAt time.Time  `json:"created_at"`           // by the database's clock
	ExpiresAt *time.Time `json:"expires_at,omitempty"` // when it ends by itself, by the database's clock; nil: never
}

// Holds reports whether the pause holds a message of its sink.
func (p *Pause) Holds(topic, key string) bool {
	switch p.Kind {
	case PauseSink:
		return true
	case PauseTopic:
		return outbox.Pattern(p.Name).Match(topic)
	case PauseKey:
		return key != "" && p.Name == key
	}
	return false
}

// Outlasts reports whether the pause ends after the other one.
func (p *Pause) Outlasts(other *Pause) bool {
	switch {
	case other == nil:
		return true
	case other.ExpiresAt == nil:
		return false
	}
	return p.ExpiresAt == nil || p.ExpiresAt.After(*other.ExpiresAt)
}

// Holding returns the one of a sink's pauses that holds a message longest; nil: none holds it.
func Holding(pauses []Pause, topic, key string) (longest *Pause) {
	for i := range pauses {
		if p := &pauses[i]; p.Holds(topic, key) && p.Outlasts(longest) {
			longest = p
		}
	}
	return longest
}

// MarkPaused notes in the states of a message that wait, pending and parked, what pauses them.
func MarkPaused(m *MessageInfo, pauses []Pause) {
	for i := range m.States {
		s := &m.States[i]
		if s.State != StatePending && s.State != StateParked {
			continue
		}
		s.Pause = Holding(OfSink(pauses, s.Sink), m.Topic, m.Key)
	}
}

// OfSink returns the pauses of one sink.
func OfSink(pauses []Pause, sink string) []Pause {
	return slices.DeleteFunc(slices.Clone(pauses), func(p Pause) bool { return p.Sink != sink })
}

// PauseAct is one act of a person on a pause.
type PauseAct struct {
	Sink   string // required
	Kind   PauseKind
	Name   string // a topic, or a pattern of topics; or a key; empty with PauseSink
	Actor  string // who; empty: the database's user
	Reason string // why; required to pause
	// For and Until say when a pause ends by itself: after this time, by the database's clock, or then. Neither: never. To
	// resume they are not used.
	For    time.Duration
	Until  time.Time
	DryRun bool // find out whether it would be refused, and change nothing
}

const maxReason = 2048

// Check refuses what no store pauses or resumes: ErrPauseInvalid, ErrReasonRequired. now is the database's clock; zero: the
// caller resumes.
func (a *PauseAct) Check(op string, now time.Time) error {
	bad := func(format string, args ...any) error {
		return &outbox.Error{Code: ErrPauseInvalid.Code, Op: op, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case a.Sink == "":
		return bad("a sink is required")
	case a.Kind == PauseSink && a.Name != "":
		return bad("a pause of a whole sink has no name besides")
	case a.Kind == PauseTopic && outbox.Pattern(a.Name).Validate() != nil:
		return &outbox.Error{
			Code: ErrPauseInvalid.Code, Op: op, Detail: fmt.Sprintf("%q is no topic and no pattern of topics", a.Name),
			Hint: "write a topic, or words separated by dots where * is one word, and > at the end the rest",
		}
	case a.Kind == PauseKey && a.Name == "":
		return bad("messages without a key have nothing in common: pause their topic")
	case !slices.Contains([]PauseKind{PauseSink, PauseTopic, PauseKey}, a.Kind):
		return bad("%q is no kind: sink, topic or key", a.Kind)
	case len(a.Name) > 255:
		return bad("topics and keys have at most 255 bytes")
	case !sayable(a.Name) || !sayable(a.Reason) || !sayable(a.Actor):
		return bad("texts are UTF-8 without NUL")
	}
	if now.IsZero() {
		return nil
	}
	return a.checkPause(op, now, bad)
}

func sayable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func (a *PauseAct) checkPause(op string, now time.Time, bad func(string, ...any) error) error {
	ends := a.Ends(now)
	switch {
	case strings.TrimSpace(a.Reason) == "":
		return &outbox.Error{Code: ErrReasonRequired.Code, Op: op, Detail: "a pause needs a reason", Hint: "say why: `status` shows it to whoever wonders"}
	case len(a.Reason) > maxReason:
		return bad("a reason has at most 2 KiB")
	case a.For != 0 && !a.Until.IsZero():
		return bad("it ends after a time or at a time, not both")
	case a.For < 0 || !a.Until.IsZero() && !a.Until.After(now):
		return bad("it would have ended already")
	case ends != nil && ends.Year() > 9999:
		return bad("it ends after the year 9999: leave the end out, and it lasts until somebody resumes")
	}
	return nil
}

// Ends is when a pause of this moment ends, in whole microseconds; nil: never.
func (a *PauseAct) Ends(now time.Time) *time.Time {
	at := a.Until
	switch {
	case a.For > 0:
		at = now.Add(a.For)
	case a.Until.IsZero():
		return nil
	}
	at = at.UTC().Truncate(time.Microsecond)
	return &at
}

// Pauser is what people hold back. Safe for concurrent use.
type Pauser interface {
	// Pause holds messages back, and returns the pause. What is paused already gets the new reason and end. ErrPauseInvalid,
	// ErrReasonRequired, ErrNotFound where there is no such sink, ErrStateConflict at MostPauses. Audited.
	Pause(ctx context.Context, act PauseAct) (Pause, error)
	// Resume ends a pause now. ErrPauseInvalid, ErrNotFound where there is no such sink or pause. Audited.
	Resume(ctx context.Context, act PauseAct) error
	// Pauses lists those that have not ended, of a sink or of all where sink is empty: by sink, a sink's own first, then
	// topics, then keys, by name. ErrNotFound where there is no such sink.
	Pauses(ctx context.Context, sink string) ([]Pause, error)
}

// ComparePauses orders pauses as lists do.
func ComparePauses(a, b Pause) int {
	kinds := []PauseKind{PauseSink, PauseTopic, PauseKey}
	if d := strings.Compare(a.Sink, b.Sink); d != 0 {
		return d
	}
	if d := slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind); d != 0 {
		return d
	}
	return strings.Compare(a.Name, b.Name)
}

// NotPaused is the error of Resume where there is nothing to resume.
func (a *PauseAct) NotPaused(op string) error {
	what := string(a.Kind) + " " + a.Name + " of sink " + a.Sink
	if a.Kind == PauseSink {
		what = "sink " + a.Sink
	}
	return &outbox.Error{Code: ErrNotFound.Code, Op: op, Detail: what + " is not paused", Hint: "`onward pauses list` shows what is"}
}

// TooMany is the error of Pause where a sink has MostPauses.
func (a *PauseAct) TooMany(op string) error {
	return &outbox.Error{
		Code: ErrStateConflict.Code, Op: op, Detail: fmt.Sprintf("sink %s has %d pauses already", a.Sink, MostPauses),
		Hint: "pause a topic, a pattern of topics, or the sink",
	}
}

// Package doctor is how a store and a publisher say what their server's real settings are worth: whether what is
// committed, or acknowledged, can be lost, and what to do about it. `onward doctor` and a relay at its start ask them.
//
// A store or publisher that can read its server's settings is an Examiner. Nothing is guessed: what cannot be read is an
// Unknown finding that says what would let it be read.
package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// Severity is how bad a finding is; a larger one is worse.
type Severity uint8

// The severities.
const (
	// OK: as it should be.
	OK Severity = iota + 1
	// Note: a limit of what is promised that many accept, and that all should know.
	Note
	// Unknown: it could not be read.
	Unknown
	// Warning: it hurts, or it loses what was accepted when several things fail together.
	Warning
	// Unsafe: one failure loses what was committed or acknowledged, or the server is refused.
	Unsafe
)

var severities = [...]string{OK: "ok", Note: "note", Unknown: "unknown", Warning: "warning", Unsafe: "unsafe"}

// String returns the severity's word: ok, note, unknown, warning or unsafe.
func (s Severity) String() string {
	if int(s) < len(severities) && severities[s] != "" {
		return severities[s]
	}
	return fmt.Sprintf("severity %d", uint8(s))
}

// MarshalText writes the severity's word.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one thing that was looked at.
type Finding struct {
	Check    string // its stable name, such as kafka-min-insync-replicas; docs/doctor.md explains each
	Where    string // the topic, stream, queue or table; empty: the server
	Severity Severity
	Read     string // the setting and its value as the server says them, or what could not be read
	Means    string // what follows for what Onward promises; empty with OK
	Fix      string // a command to copy, or, where there is none, what to do; empty: nothing is to be done
}

// Diagnosis is what was found of one server.
type Diagnosis struct {
	Server   string    // product and version, as far as it says them
	Worth    string    // what a commit, or an acknowledgement, of it is worth, in a sentence
	Findings []Finding // in the order in which they were looked at
}

// Verdict is the worst of the findings; Unknown where there are none.
func (d Diagnosis) Verdict() Severity {
	worst := Severity(0)
	for i := range d.Findings {
		worst = max(worst, d.Findings[i].Severity)
	}
	if worst == 0 {
		return Unknown
	}
	return worst
}

// Add appends findings.
func (d *Diagnosis) Add(f ...Finding) { d.Findings = append(d.Findings, f...) }

// Has reports whether a check found something at least this bad.
func (d Diagnosis) Has(check string, s Severity) bool {
	for i := range d.Findings {
		if f := &d.Findings[i]; f.Check == check && f.Severity >= s {
			return true
		}
	}
	return false
}

// Question is what an Examiner needs to know of the relay's side.
type Question struct {
	// Samples are messages that the sink takes, the newest first: a publisher finds from them which topics, streams and queues
	// it would write to. They have no payloads, and may be made up from a topic alone.
	Samples []*outbox.Record
	// MaxPayload is the largest payload, in bytes, that rules for these topics let through; 0: none says it, and it is what
	// writers may write, outbox.MaxPayload.
	MaxPayload int
	// Retry is the longest time between two copies of one message, as far as the settings bound it.
	Retry time.Duration
}

// Examiner reads its server's settings. A store or publisher may be one.
type Examiner interface {
	// Examine reads, and changes and publishes nothing. An error says that the server could not be asked at all; what it does
	// not answer, or not to this user, is an Unknown finding.
	Examine(ctx context.Context, q Question) (Diagnosis, error)
}

// Sampler is a store that can show what has been written lately. A store may be one.
type Sampler interface {
	// Newest returns the newest messages, at most most, without payloads and headers, the newest first. No tables: none.
	Newest(ctx context.Context, most int) ([]*outbox.Record, error)
}

// Package chaos runs an outbox with relays and writers as processes, breaks everything around them at random from a seed, and
// checks what arrived against a ledger that was written in the business transactions themselves. docs/chaos.md says how to run
// it and how to read what it leaves.
package chaos

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Kinds of ledger entries; the others are usual messages.
const (
	Poison   = "poison"   // of a topic that the broker refuses for good
	Oversize = "oversize" // larger than the relay, or the broker, takes
	Later    = "later"    // scheduled: it goes out when it is due
	Held     = "held"     // of a transaction that was kept open
)

// Entry is one message of the ledger, a table that is written in the same transaction as the message: it is there exactly if
// the message is.
type Entry struct {
	ID     string    `json:"id"`
	Key    string    `json:"key"`            // empty: no order is wanted
	N      int64     `json:"n"`              // numbers the messages of a key in the order in which their transactions followed each other
	Digest string    `json:"digest"`         // of the payload
	Kind   string    `json:"kind,omitempty"` // poison, oversize, ...; empty: nothing special
	At     time.Time `json:"at"`             // when it was written, a moment before its commit
}

// Arrival is one message that the broker has, as the collector read it there.
type Arrival struct {
	ID       string    `json:"id"`
	Key      string    `json:"key"`
	Digest   string    `json:"digest"`
	Position string    `json:"position"`
	At       time.Time `json:"at"`    // when the broker stored it, or, where it does not say, when it was read
	Epoch    string    `json:"epoch"` // of its partition's owner
}

// Fault is something that was done to the system, or, if Observed, something that a relay's log says it has met.
type Fault struct {
	Kind   string    `json:"kind"`
	Target string    `json:"target"`
	At     time.Time `json:"at"`
	End    time.Time `json:"end"` // when everything was as before, but for what recovers by itself
	Detail string    `json:"detail,omitempty"`
	// Relays is how many relays may repeat what they had not settled because of it.
	Relays int `json:"relays"`
	// Unsettled is how many messages the outbox had to publish, or had not settled, a moment before; 0 where it did not answer.
	Unsettled int64  `json:"unsettled"`
	Observed  bool   `json:"observed,omitempty"`
	Error     string `json:"error,omitempty"` // it could not be done
}

// Act is what an operator did to the outbox.
type Act struct {
	At     time.Time `json:"at"`
	Action string    `json:"action"`         // discard, requeue, pause, resume
	ID     string    `json:"id,omitempty"`   // of a message
	Name   string    `json:"name,omitempty"` // of what was paused or resumed
	Error  string    `json:"error,omitempty"`
}

// Meta is what a run was, and what was measured while it ran.
type Meta struct {
	Seed         uint64    `json:"seed"`
	Commit       string    `json:"commit"` // of the work tree; with + behind it where that was changed
	Store        string    `json:"store"`
	Broker       string    `json:"broker"`
	NoDuplicates bool      `json:"no_duplicates"` // the sink promises none at all
	Started      time.Time `json:"started"`
	DurationMS   int64     `json:"duration_ms"` // of the faults
	DrainMS      int64     `json:"drain_ms"`    // from their end until everything had arrived
	LeaseMS      int64     `json:"lease_ms"`
	BesideMS     int64     `json:"beside_ms"` // how long after the last fault a copy may come that the faults explain
	Window       int       `json:"window"`
	Page         int       `json:"page"`

	RelaysStarted int               `json:"relays_started"`
	RelaysKilled  int               `json:"relays_killed"`
	WritersKilled int               `json:"writers_killed"`
	MaxRSS        int64             `json:"max_rss_bytes"`       // of the largest relay
	DeadLetters   int               `json:"dead_letters_most"`   // at once, of those that were looked at
	DeadRows      map[string]int64  `json:"dead_rows_most"`      // by table, at once; PostgreSQL
	Left          map[string]int64  `json:"left"`                // backlog, parked and dead, when everything had arrived
	NotInjected   map[string]string `json:"not_injected"`        // faults that this machine cannot have, and why
	Broken        []string          `json:"broken,omitempty"`    // what no relay may do: ended by itself, did not stop
	Undrained     string            `json:"undrained,omitempty"` // why waiting for the rest was given up
}

// History is all that a check needs.
type History struct {
	Meta     Meta
	Ledger   []Entry
	Arrivals []Arrival // in the order of the broker
	Faults   []Fault
	Acts     []Act
	Audit    []string // ids of the messages whose discard the outbox has in its audit
}

// The files of a report's folder.
const (
	metaFile     = "run.json"
	ledgerFile   = "ledger.jsonl"
	receivedFile = "received.jsonl"
	faultsFile   = "faults.jsonl"
	actsFile     = "acts.jsonl"
	auditFile    = "audit.jsonl"
	reportFile   = "report.json"
)

// Save writes the history into a folder, which must exist.
func (h *History) Save(dir string) error {
	return errors.Join(
		saveJSON(filepath.Join(dir, metaFile), h.Meta), saveLines(filepath.Join(dir, ledgerFile), h.Ledger),
		saveLines(filepath.Join(dir, receivedFile), h.Arrivals), saveLines(filepath.Join(dir, faultsFile), h.Faults),
		saveLines(filepath.Join(dir, actsFile), h.Acts), saveLines(filepath.Join(dir, auditFile), h.Audit),
	)
}

// Load reads what Save wrote.
func Load(dir string) (*History, error) {
	h := &History{}
	text, err := os.ReadFile(filepath.Join(dir, metaFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no report of a run: it has no %s", dir, metaFile)
	}
	if err != nil {
		return nil, err
	}
	return h, errors.Join(
		json.Unmarshal(text, &h.Meta), loadLines(filepath.Join(dir, ledgerFile), &h.Ledger),
		loadLines(filepath.Join(dir, receivedFile), &h.Arrivals), loadLines(filepath.Join(dir, faultsFile), &h.Faults),
		loadLines(filepath.Join(dir, actsFile), &h.Acts), loadLines(filepath.Join(dir, auditFile), &h.Audit),
	)
}

func saveJSON(file string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o600)
}

func saveLines[T any](file string, lines []T) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(f)
	encode := json.NewEncoder(out)
	for i := range lines {
		if err = encode.Encode(&lines[i]); err != nil {
			break
		}
	}
	return errors.Join(err, out.Flush(), f.Close())
}

func loadLines[T any](file string, lines *[]T) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for decode := json.NewDecoder(bufio.NewReader(f)); ; {
		var line T
		if err := decode.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		*lines = append(*lines, line)
	}
}

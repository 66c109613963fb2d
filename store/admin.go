package store

import (
	"context"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// What people's acts are refused with.
var (
	ErrNotFound       = &outbox.Error{Code: "onward/not-found", Detail: "there is no such thing"}
	ErrStateConflict  = &outbox.Error{Code: "onward/state-conflict", Detail: "it is not in a state that allows this"}
	ErrReorderRefused = &outbox.Error{Code: "onward/reorder-refused", Detail: "later messages of its key were published"}
	ErrReasonRequired = &outbox.Error{Code: "onward/reason-required", Detail: "a reason is required"}
	ErrFilterInvalid  = &outbox.Error{Code: "onward/filter-invalid", Detail: "the filter cannot be used"}
)

// State is where a message stands for one sink.
type State string

// The states.
const (
	StatePending    State = "pending"
	StateParked     State = "parked"
	StatePublished  State = "published"
	StateDead       State = "dead"
	StateDiscarded  State = "discarded"
	StateRolledBack State = "rolled-back" // the receipt's transaction was rolled back: ErrRolledBack
	StateUnknown    State = "unknown"     // never seen, gone by retention, or of a topic that the sink does not take
)

// Admin is what people ask of an outbox, from the CLI, the API or a program. Safe for concurrent use.
type Admin interface {
	Acts
	// Status is cheap at any size of the outbox: what it counts stops at 100,000, and it says so.
	Status(ctx context.Context) (Status, error)
	// Messages lists, newest first, without payloads; ErrFilterInvalid, ErrNotFound where f.Sink does not exist.
	Messages(ctx context.Context, f Filter) (MessageList, error)
	// Message returns one message with its state in every sink; ErrNotFound.
	Message(ctx context.Context, id outbox.ID) (MessageInfo, error)
	// Dead lists dead letters, newest first; with their payloads where f.ID names one. Errors as Messages.
	Dead(ctx context.Context, f Filter) (DeadList, error)
	// Partitions lists those of a sink, or of all where sink is empty, by number; ErrNotFound.
	Partitions(ctx context.Context, sink string) ([]PartitionInfo, error)
	// Relays lists those that are registered, by name; one that died is there until another relay has taken over.
	Relays(ctx context.Context) ([]RelayInfo, error)
}

// Acts are what people do to an outbox; the audit keeps who, and why.
type Acts interface {
	// Requeue makes a dead letter the parked head of its key again: same id, same place, a fresh budget of attempts.
	// ErrNotFound, ErrStateConflict; ErrReorderRefused when later messages of its key were published and acceptReorder is
	// not set: the error says how many.
	Requeue(ctx context.Context, act Act, acceptReorder bool) error
	// Discard removes a dead or parked message for good; audited. ErrReasonRequired, ErrNotFound, ErrStateConflict.
	Discard(ctx context.Context, act Act) error
	// RemoveSink forgets a sink, its cursors, and its parked and dead messages; the log is left alone. act.ID is not used.
	// ErrStateConflict while a live relay serves it, ErrReasonRequired, ErrNotFound; audited.
	RemoveSink(ctx context.Context, act Act) error
}

// Tracker answers where a receipt's message stands in a sink. Published means: the cursor's snapshot sees its
// transaction, its number is passed, and it is neither parked nor dead. ErrNotFound where there is no such sink. Safe for
// concurrent use.
type Tracker interface {
	State(ctx context.Context, sink string, r outbox.Receipt) (State, error)
}

// Progress answers how much was published when. Safe for concurrent use.
type Progress interface {
	// Minutes returns the minutes since a time in which the sink published, oldest first, as far as retention has left them, the
	// one at hand included; ErrNotFound where there is no such sink. The database's clock counts, and settling does: what a
	// relay published at a minute's very end may count in the next.
	Minutes(ctx context.Context, sink string, since time.Time) ([]Minute, error)
}

// Minute is what a sink published in a minute.
type Minute struct {
	At        time.Time // its beginning
	Published int64     // messages
}

// Act is one act of a person on one message of one sink.
type Act struct {
	Sink   string // required
	ID     outbox.ID
	Actor  string // who; empty: the database's user
	Reason string // why; required to discard and to remove
	DryRun bool   // find out whether it would be refused, and change nothing
}

// Filter selects messages; empty fields select everything, and what is set must all hold. Texts are compared whole. The names
// are those of the CLI.
type Filter struct {
	// Sink is the one whose states are looked at; empty: any.
	Sink, Topic, Type, Key, EventID, CorrelationID, Scope string
	ID                                                    outbox.ID
	State                                                 State       // pending, parked, published, dead or discarded
	Reason                                                Reason      // of what is parked
	Code                                                  outbox.Code // of the last failure of what is parked or dead
	// Since (from it on) and Until (before it) look at when a message was written, of a dead letter at when it died.
	Since, Until time.Time
	Attempts     int    // failed at least so often
	Limit        int    // 0: 100; at most 10,000
	After        string // MessageList.Next or DeadList.Next of the page before
}

// MessageList is a page of messages.
type MessageList struct {
	Messages []MessageInfo `json:"messages"`
	Next     string        `json:"next,omitempty"`    // pass as Filter.After for the next page; empty: this was the last
	Partial  bool          `json:"partial,omitempty"` // the search read 100,000 rows and stopped: go on from Next
}

// MessageInfo is a message as people see it. Lists leave the payload out.
type MessageInfo struct {
	outbox.Record
	PayloadBytes int
	Tx           uint64      // the transaction that wrote it; 0 where the database shows none
	States       []SinkState // by sink; empty while there is no sink
}

// SinkState is where a message stands in a sink, and why.
type SinkState struct {
	Sink      string      `json:"sink"`
	State     State       `json:"state"`
	Reason    Reason      `json:"reason,omitempty"`     // of what is parked
	Attempts  int         `json:"attempts,omitempty"`   // that failed, of what is parked or dead
	DueAt     *time.Time  `json:"due_at,omitempty"`     // the next try of the head of a key; nil: it waits for another message
	LastCode  outbox.Code `json:"last_code,omitempty"`  // of the last failure
	LastError string      `json:"last_error,omitempty"` // its text, at most 2 KiB
	// Of what is published, where one message is asked for and it is known: it went out after the one time and by the other, by
	// the database's clock. Where relays changed at the time, or it was parked, see the store's Message.
	PublishedAfter *time.Time `json:"published_after,omitempty"`
	PublishedBy    *time.Time `json:"published_by,omitempty"`
	Pause          *Pause     `json:"pause,omitempty"` // what holds it while it is pending or parked; lists leave it out
}

// DeadList is a page of dead letters.
type DeadList struct {
	Dead    []DeadInfo
	Next    string // pass as Filter.After for the next page; empty: this was the last
	Partial bool   // the search read 100,000 rows and stopped: go on from Next
}

// DeadInfo is a dead letter.
type DeadInfo struct {
	outbox.Record                           // with its payload only where Filter.ID names it
	Sink                      string        // a message may be dead in several
	PayloadBytes              int           // its size, in lists too
	Code                      outbox.Code   // of the last failure, or why no further one is tried
	Error                     string        // its text, at most 2 KiB
	Attempts                  int           // failed attempts, in all
	FirstFailure, LastFailure time.Time     // by the database's clock; the last is when it died
	Relay                     string        // name of the one that gave up
	Blocks                    bool          // the later messages of its key wait for it
	Behind                    int           // parked messages that wait behind it; only where Filter.ID names one
	Tries                     []AttemptInfo // only where Filter.ID names one
}

// AttemptInfo is one failed try as it was kept.
type AttemptInfo struct {
	At    time.Time // when it was written down, by the database's clock
	Relay string    // its name
	Attempt
}

// Status is the outbox at a glance.
type Status struct {
	Info
	Now        time.Time    // the database's clock
	Sinks      []SinkStatus // by name
	RelaysLive int          // whose lease has not run out
	// Unrouted are topics of recent messages that no sink takes, the most frequent first, at most 10. Empty where there is no
	// sink at all. Recent are the newest UnroutedOf messages of the log, at most 100,000; 0: some sink takes every topic.
	Unrouted   []TopicCount
	UnroutedOf int64
	// Reborn is when the server last began another life (a crash, a promotion, a restore) under an outbox that relays read;
	// zero: never, or the store cannot tell.
	Reborn time.Time
	// Rebased is when the cursors were last set anew because the rows were of another server; nil: never.
	Rebased *Rebased
}

// Rebased is what was found and done when cursors were set anew.
type Rebased struct {
	At    time.Time `json:"at"`
	Found []string  `json:"found"` // what said so
	Again int64     `json:"again"` // messages that were handed over before and come again, of all sinks
	Floor int64     `json:"floor"` // messages up to this number are of the other server
}

// TopicCount is how many messages a topic has.
type TopicCount struct {
	Topic    string `json:"topic"`
	Messages int64  `json:"messages"`
}

// Serving is a live relay that serves a sink, and how: its line of settings.
type Serving struct {
	Relay    string `json:"relay"`
	Settings string `json:"settings,omitempty"`
}

// SinkStatus is one sink at a glance.
type SinkStatus struct {
	Name string
	outbox.Selection
	CreatedAt, SeenAt time.Time // when it was registered first, and last
	Serving           []Serving // live relays, by name

	Backlog         int64         // messages not yet published, without parked ones
	BacklogAtLeast  bool          // counting stopped at Backlog
	Lag             time.Duration // age of the oldest unpublished message in the log; 0: none
	Parked          map[Reason]int64
	BlockedKeys     int64   // whose messages wait for one that is retried or paused, or for a dead letter
	Pauses          []Pause // that have not ended, in the order of Pauser.Pauses
	Dead            int64
	CountsAtLeast   bool    // counting of parked, blocked or dead stopped
	Published       int64   // since the sink exists
	Rate            float64 // messages published a second, since five whole minutes ago
	PartitionsOwned int     // by relays, living or not yet taken over
	PartitionsFree  int
	// RetentionHeld is for how long retention has waited for this sink: what the sink has not passed, whether it takes it or
	// not, would have been removed so long ago. By created_at, and without what was committed late; 0: it waits for nothing,
	// or no relay looks after retention.
	RetentionHeld time.Duration
	// LastSettle is when a relay last wrote a cursor of the sink: by a settle, as it joined or, where none is registered
	// any more, as it left. Zero: never.
	LastSettle time.Time
}

// PartitionInfo is one partition of a sink.
type PartitionInfo struct {
	Sink      string
	Partition int
	Relay     string    // name; empty: free
	Epoch     int64     // grows with each owner
	Seq       int64     // settled up to here, but for what committed late
	FreedAt   time.Time // when it was last given back or taken from a relay; zero: never
	Parked    int64     // messages; counted up to 100,000
}

// RelayInfo is a registered relay.
type RelayInfo struct {
	ID                                  outbox.ID // of this start
	Name, Host, Version                 string
	PID                                 int
	Sinks                               []string
	Partitions                          int       // held, of all its sinks together
	Draining                            bool      // it takes no further partitions
	Live                                bool      // its lease has not run out
	StartedAt, HeartbeatAt, LeasedUntil time.Time // by the database's clock
	Lease                               time.Duration
}

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
	Status(ctx context.Context) (Status, error)
	// Messages lists, newest first.
	Messages(ctx context.Context, f Filter) (MessageList, error)
	// Message returns one message with its state in every sink; ErrNotFound.
	Message(ctx context.Context, id outbox.ID) (MessageInfo, error)
	// Dead lists dead letters, newest first; with their payloads where f.ID names one.
	Dead(ctx context.Context, f Filter) (DeadList, error)
	Partitions(ctx context.Context, sink string) ([]PartitionInfo, error)
	Relays(ctx context.Context) ([]RelayInfo, error)
}

// Acts are what people do to an outbox; the audit keeps who, and why.
type Acts interface {
	// Requeue makes a dead letter the parked head of its key again: same id, same place, a fresh budget of attempts.
	// ErrNotFound, ErrStateConflict; ErrReorderRefused when later messages of its key were published and acceptReorder is
	// not set: the error says how many.
	Requeue(ctx context.Context, act Act, acceptReorder bool) error
	// Discard removes a dead or parked message for good; audited. ErrReasonRequired, ErrNotFound.
	Discard(ctx context.Context, act Act) error
	// RemoveSink forgets a sink, its cursors, and its parked and dead messages; the log is left alone. act.ID is not used.
	// ErrStateConflict while a live relay serves it, ErrReasonRequired, ErrNotFound; audited.
	RemoveSink(ctx context.Context, act Act) error
}

// Tracker answers where a receipt's message stands in a sink. Published means: the cursor's snapshot sees its
// transaction, its number is passed, and it is neither parked nor dead.
type Tracker interface {
	State(ctx context.Context, sink string, r outbox.Receipt) (State, error)
}

// Act is one act of a person on one message of one sink.
type Act struct {
	Sink   string
	ID     outbox.ID
	Actor  string // who; empty: the database's user
	Reason string
	DryRun bool // find out whether it would be refused, and change nothing
}

// Filter selects messages; empty fields select everything. The names are those of the CLI.
type Filter struct {
	Sink, Topic, Type, Key, EventID, CorrelationID, Scope string
	ID                                                    outbox.ID
	State                                                 State
	Reason                                                Reason
	Code                                                  outbox.Code
	Since, Until                                          time.Time
	Attempts                                              int    // at least this many
	Limit                                                 int    // 0: 100; at most 10,000
	After                                                 string // MessageList.Next or DeadList.Next of the page before
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
	Tx           uint64
	States       []SinkState
}

// SinkState is where a message stands in a sink, and why.
type SinkState struct {
	Sink      string      `json:"sink"`
	State     State       `json:"state"`
	Reason    Reason      `json:"reason,omitempty"`
	Attempts  int         `json:"attempts,omitempty"`
	DueAt     *time.Time  `json:"due_at,omitempty"`
	LastCode  outbox.Code `json:"last_code,omitempty"`
	LastError string      `json:"last_error,omitempty"`
}

// DeadList is a page of dead letters.
type DeadList struct {
	Dead    []DeadInfo
	Next    string // pass as Filter.After for the next page; empty: this was the last
	Partial bool   // the search read 100,000 rows and stopped: go on from Next
}

// DeadInfo is a dead letter.
type DeadInfo struct {
	outbox.Record
	Sink                      string
	PayloadBytes              int
	Code                      outbox.Code
	Error                     string
	Attempts                  int
	FirstFailure, LastFailure time.Time
	Relay                     string
	Blocks                    bool
	Behind                    int           // parked messages that wait behind it; only where Filter.ID names one
	Tries                     []AttemptInfo // only where Filter.ID names one
}

// AttemptInfo is one failed try as it was kept.
type AttemptInfo struct {
	At    time.Time
	Relay string
	Attempt
}

// Status is the outbox at a glance.
type Status struct {
	Info
	Now        time.Time
	Sinks      []SinkStatus
	RelaysLive int
	// Unrouted are topics of recent messages that no sink takes, the most frequent first, at most 10. Empty where there is no
	// sink at all. Recent are the newest UnroutedOf messages of the log, at most 100,000; 0: some sink takes every topic.
	Unrouted   []TopicCount
	UnroutedOf int64
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
	BlockedKeys     int64
	Dead            int64
	CountsAtLeast   bool  // counting of parked, blocked or dead stopped
	Published       int64 // since the sink exists
	PartitionsOwned int
	PartitionsFree  int
	// LastSettle is when a relay last wrote a cursor of the sink: by a settle, as it joined or, where none is registered
	// any more, as it left. Zero: never.
	LastSettle time.Time
}

// PartitionInfo is one partition of a sink.
type PartitionInfo struct {
	Sink      string
	Partition int
	Relay     string // name; empty: free
	Epoch     int64
	Seq       int64 // handed over up to here
	FreedAt   time.Time
	Parked    int64
}

// RelayInfo is a registered relay.
type RelayInfo struct {
	ID                                  outbox.ID
	Name, Host, Version                 string
	PID                                 int
	Sinks                               []string
	Partitions                          int
	Draining, Live                      bool
	StartedAt, HeartbeatAt, LeasedUntil time.Time
	Lease                               time.Duration
}

package store

import (
	"context"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// Keys answers what holds keys up. Safe for concurrent use.
type Keys interface {
	// Keys lists keys that have parked messages or dead letters that block, by sink, partition and key. ErrFilterInvalid,
	// ErrNotFound where f.Sink does not exist.
	Keys(ctx context.Context, f KeyFilter) (KeyList, error)
	// Key says how a key stands in a sink, or in each where sink is empty, in order of their names. ErrNotFound where there
	// is no such sink, and where nothing is known of the key.
	Key(ctx context.Context, sink, key string) ([]KeyInfo, error)
}

// KeyFilter selects keys.
type KeyFilter struct {
	Sink    string // empty: all
	Blocked bool   // only keys that wait for more than the time of scheduled messages
	Limit   int    // 0: 100; at most 10,000
	After   string // KeyList.Next of the page before
}

// KeyList is a page of keys.
type KeyList struct {
	Keys []KeyInfo `json:"keys"`
	Next string    `json:"next,omitempty"` // pass as KeyFilter.After for the next page; empty: this was the last
}

// KeyInfo is how a key stands in a sink: what blocks it, and how many wait.
type KeyInfo struct {
	Sink      string `json:"sink"`
	Key       string `json:"key"`
	Partition int    `json:"partition"`
	// Waiting are parked messages, but for those whose time is ahead; counted up to 10,000, in lists up to 1,000.
	Waiting        int64      `json:"waiting"`
	WaitingAtLeast bool       `json:"waiting_at_least,omitempty"` // counting stopped
	Oldest         *time.Time `json:"oldest,omitempty"`           // when the first of them, or the dead letter, was written
	// Scheduled are parked messages whose time is ahead, which block nobody: counted up to 10,000, in lists up to 1,000.
	Scheduled int64 `json:"scheduled,omitempty"`
	// Dead is the first dead letter that blocks the key; DeadCount how many do. Nil: none does.
	Dead      *KeyBlock `json:"dead,omitempty"`
	DeadCount int64     `json:"dead_count,omitempty"`
	// Head is the first parked message, which those behind it wait for. Nil: nothing is parked.
	Head *KeyBlock `json:"head,omitempty"`
	// Pause is what pauses the key, its first message or the whole sink. Nil: nothing does.
	Pause *Pause `json:"pause,omitempty"`
}

// Blocked reports whether messages of the key wait for more than their time.
func (k *KeyInfo) Blocked() bool { return k.Dead != nil || k.Head != nil || k.Pause != nil }

// KeyBlock is a message that others of its key wait for.
type KeyBlock struct {
	ID       outbox.ID   `json:"id"`
	Topic    string      `json:"topic"`
	Reason   Reason      `json:"reason,omitempty"`   // of a parked one
	Attempts int         `json:"attempts,omitempty"` // that failed
	DueAt    *time.Time  `json:"due_at,omitempty"`   // the next try of a parked one; nil: it waits for another thing
	Code     outbox.Code `json:"code,omitempty"`     // of the last failure
	Error    string      `json:"error,omitempty"`    // its text, at most 2 KiB
}

// Bounds of KeyInfo.Waiting.
const (
	MostWaiting       = 10_000
	MostWaitingInList = 1_000
)

// MarkPaused notes what pauses the key.
func (k *KeyInfo) MarkPaused(pauses []Pause) {
	topic := "" // matches no pattern
	if k.Head != nil {
		topic = k.Head.Topic
	}
	k.Pause = Holding(OfSink(pauses, k.Sink), topic, k.Key)
}

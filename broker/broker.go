// Package broker is what the relay asks of a publisher: one destination (a JetStream stream, a Kafka cluster, ...) that
// takes batches of messages and answers for each one what became of it. brokertest holds every publisher to it, and
// checks that declared capabilities are true; membroker is the in-memory twin for tests.
package broker

import (
	"context"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// Outcome is what became of one message.
type Outcome uint8

// The outcomes, and what the relay does about each.
const (
	// Accepted: the broker has it as durably as it is configured to. The message is published.
	Accepted Outcome = iota + 1
	// Duplicate: the broker had it already and dropped this copy. The message is published.
	Duplicate
	// Retry: this message cannot be taken now, others can. Uses up an attempt and backs off its key.
	Retry
	// Unavailable: the broker takes nothing. Opens the breaker and uses up no attempt.
	Unavailable
	// Throttled: the broker asks to wait for Result.After. Delays the sink and uses up no attempt.
	Throttled
	// Rejected: the broker will never take this message. It becomes a dead letter at once.
	Rejected
	// Uncertain: it was sent and no answer came. It is sent again with the same id and uses up no attempt, but for the
	// third in a row of one message while others get through.
	Uncertain
)

// String returns the outcome's word in metrics, logs and the CLI.
func (o Outcome) String() string {
	switch o {
	case Accepted:
		return "accepted"
	case Duplicate:
		return "duplicate"
	case Retry:
		return "retry"
	case Unavailable:
		return "unavailable"
	case Throttled:
		return "throttled"
	case Rejected:
		return "rejected"
	case Uncertain:
		return "uncertain"
	}
	return "unknown"
}

// Codes of results that more than one publisher uses.
const (
	CodeUnavailable    outbox.Code = "onward/broker-unavailable"  // the broker, or the destination, is not there
	CodeThrottled      outbox.Code = "onward/throttled"           // the broker, or the publisher, has enough for now
	CodeRejected       outbox.Code = "onward/rejected"            // the broker takes others, and not this message
	CodeUnroutable     outbox.Code = "onward/unroutable"          // no stream, queue or topic takes it
	CodeTooLarge       outbox.Code = "onward/payload-too-large"   // larger than the broker takes
	CodePublishTimeout outbox.Code = "onward/publish-timeout"     // no answer in time
	CodeUnconfirmed    outbox.Code = "onward/publish-unconfirmed" // sent, and the answer was lost or says nothing final
	CodePermission     outbox.Code = "onward/permission-denied"   // the broker refuses this topic to the relay's user
	CodePanic          outbox.Code = "onward/publisher-panic"
	CodeTemplateFailed outbox.Code = "onward/template-failed" // a template of the sink gives no name for this message
)

// Result is the answer for one message.
type Result struct {
	Outcome  Outcome
	Position string        // the broker's own (a stream sequence, partition and offset), opaque; with Accepted and Duplicate
	After    time.Duration // with Throttled: how long to wait; 0 lets the relay choose
	Code     outbox.Code   // with every outcome but Accepted and Duplicate
	Err      error         // the broker's own error behind it; never goes out to a consumer
}

// Capabilities are claims that brokertest checks.
type Capabilities struct {
	// Pipeline: several messages of one key may be on their way at once, because they arrive in the order in which they
	// were handed over, and if one fails, every later one of its key that was on its way fails too, and so does what is handed
	// over before all of them have been answered. Without it the relay keeps one message of a key in flight.
	Pipeline bool
	// Positions: accepted messages come with the broker's position, and duplicates, but for those that a Claimer knows of.
	Positions bool
	// Dedup is for how long the broker drops a second copy of an id; 0: it does not. With Claims: at most, for the copy of a
	// message that was reported as settled is stored again.
	Dedup time.Duration
	// Claims: the publisher is a Claimer, and takes messages of partitions that it has claimed alone.
	Claims bool
	// MaxBytes is the largest payload that the broker takes beside the largest headers; 0: not known, or no limit. The
	// publisher itself answers Rejected with CodeTooLarge for what does not fit: where the broker counts headers too, a
	// larger payload with few headers still goes out, so a relay must not refuse by this number.
	MaxBytes int
}

// Envelope is a message on its way out. Publishers must not change what it points to, and must not keep it after they
// have answered for it.
type Envelope struct {
	*outbox.Record
	Epoch   int64  // of the partition's owner: grows with each owner
	Lineage string // of the database's numbering, for people
	Attempt int    // 1 at the first try
	Relay   string // the name of the relay; it and Attempt go out only where the sink lists diagnosis in wire_fields
}

// Publisher drives one destination. All methods are safe for concurrent use.
type Publisher interface {
	// Capabilities may change while the publisher runs (a server lowers its limit); the relay reads them at its start.
	Capabilities() Capabilities
	// Check asks whether the destination takes messages now; it publishes nothing. The relay calls it at start and as the
	// breaker's probe. An error says what is missing and, as *outbox.Error, what to do.
	Check(ctx context.Context) error
	// Publish starts the batch and returns. done must be called exactly once for each index, from any goroutine, also
	// after ctx ends (Uncertain for what was sent, Unavailable for what was not). Calls may overlap; messages of one key
	// come in order. The batch belongs to the publisher until it has answered for all of it.
	Publish(ctx context.Context, batch []Envelope, done func(i int, r Result))
	// Close waits for what is on its way until ctx ends, and frees what the publisher made. A connection that the caller
	// handed in stays open.
	Close(ctx context.Context) error
}

// Describer is a publisher with settings of its own that all relays of a sink should have alike.
type Describer interface {
	// Describe is those that are not the defaults, as name=value with blanks between, without secrets; people see it where
	// relays of one sink differ.
	Describe() string
}

// Package brokertest is the conformance suite of broker.Publisher: every sentence of that contract as a test, and every
// declared capability checked for truth. A driver runs it on its real broker:
//
//	func TestPublisher(t *testing.T) {
//		brokertest.Run(t, func(t *testing.T) brokertest.Harness { ... })
//	}
package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
)

// Harness is one destination, made for one test: a stream, a topic, a queue that nothing else writes to. Fields without
// the word optional are needed.
type Harness struct {
	// Topic is a topic that the destination takes.
	Topic string
	// Open makes a publisher of the destination. The suite closes it; it may open several.
	Open func(t *testing.T) broker.Publisher
	// Read returns what arrived at the destination, in order, as a consumer with a connection of its own sees it. It waits
	// until there are n messages at least, or ctx ends, and returns all that are there.
	Read func(ctx context.Context, n int) ([]Message, error)
	// Slots are the broker's own headers that a message must arrive with beside those of the raw format. Optional.
	Slots func(e broker.Envelope) []Header

	// AnyCase: the broker's consumers know names of headers whatever their case (HTTP), and Read gives them in lower case.
	AnyCase bool
	// OpenWire makes a publisher that writes as c says; Style is the one that it makes its broker.Wire with. Optional, both or
	// none. In formats of CloudEvents Slots holds as well, for what is not one of their headers.
	OpenWire func(t *testing.T, c broker.WireConfig) broker.Publisher
	Style    broker.Style

	// HeaderRoom is what Capabilities.MaxBytes leaves for headers, in bytes, where the broker's limit counts them: a
	// payload of MaxBytes arrives whatever its headers, one of MaxBytes+HeaderRoom+1 is Rejected. 0: the limit is exact.
	HeaderRoom int
	// Less reports whether position a is before b. Optional: positions are decimal numbers.
	Less func(a, b string) bool
	// Poison changes a message so that the broker fails it and takes others. Needed where Pipeline is claimed.
	Poison func(e *broker.Envelope)
	// Unroutable is a topic that nothing takes while the destination is there. Optional.
	Unroutable string

	// Stop makes the broker unreachable: connections break, new ones fail. Start ends it. Optional, both or none.
	Stop, Start func(t *testing.T)
	// Freeze makes the broker silent while connections stay; the returned function ends it. Optional.
	Freeze func(t *testing.T) (thaw func())

	// Patience is how long the suite waits for what must come; 0: 30s.
	Patience time.Duration
}

// Message is one that arrived.
type Message struct {
	Headers  []Header
	Payload  []byte
	Position string // as the publisher's results name it; "" where the consumer does not see it
}

// Header is one header of a message that arrived. A name may come twice.
type Header struct{ Name, Value string }

// Value returns the first value of a header, or "".
func (m Message) Value(name string) string {
	for _, h := range m.Headers {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

// Run runs the suite; each test asks for a destination of its own and runs in parallel with the others.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &suite{T: t, Harness: open(t)}
			s.complete()
			c.run(s)
		})
	}
}

// cases are the suite. A case that its harness has no means for says so in the log and passes: what a driver's broker
// can do is the driver's decision, a skipped test would look like an accident.
var cases = []struct {
	name string
	run  func(*suite)
}{
	{"answers each index exactly once", answersOnce},
	{"answers with an outcome, a code and a cause", answersComplete},
	{"overlaps batches", overlapsBatches},
	{"sends nothing after the context ended", sendsNothingAfterContext},
	{"answers all when the context ends meanwhile", answersWhenContextEnds},
	{"leaves the batch as it is and keeps nothing", leavesBatchAlone},
	{"keeps the order of a key", keepsOrder},
	{"carries headers and payload byte for byte", carriesWire},
	{"carries payloads of any bytes", carriesPayloads},
	{"carries CloudEvents and listed fields", carriesFormats},
	{"accepts only what another connection reads", acceptedIsReadable},
	{"drops duplicates within the window", dropsDuplicates},
	{"remembers ids for the whole window", remembersIDs},
	{"tells messages apart by their ids alone", tellsApartByID},
	{"names positions that grow", namesPositions},
	{"keeps order in a pipeline", keepsPipeline},
	{"takes MaxBytes and no more", takesMaxBytes},
	{"rejects what nothing takes", rejectsUnroutable},
	{"checks without publishing", checksOnly},
	{"waits in Close", closeWaits},
	{"answers all when Close is cut short", closeCutShort},
	{"takes nothing after Close", takesNothingAfterClose},
	{"survives an outage", survivesOutage},
	{"keeps order through an outage", keepsOrderThroughOutage},
	{"returns while the broker is silent", returnsWhileSilent},
}

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"syscall"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/onwardhq/onward/e2e/harness"
)

// ServiceBus is the peer that stands for Azure Service Bus, with a queue for each topic and none for the poisoned one.
const ServiceBus = "servicebus"

// trouble is one way in which a queue goes wrong during BrokerAlarm.
type trouble struct {
	name     string
	settings map[string]any
}

// troubles are all of them, two for each topic. What is stored without an answer that says so comes again: of that there are few, or more copies would
// come than one fault explains.
var troubles = []trouble{
	{"full", map[string]any{"quota": 1}},
	{"silent, stored", map[string]any{"outcome": "silent", "store": true, "times": 20}},
	{"released", map[string]any{"outcome": "released"}},
	{"link ends, stored", map[string]any{"detach": "amqp:link:detach-forced", "store": true, "times": 20}},
	{"settled without an outcome, stored", map[string]any{"outcome": "settled", "store": true, "times": 20}},
	{"modified", map[string]any{"outcome": "modified"}},
	{"connection ends, stored", map[string]any{"close": "amqp:connection:forced", "store": true, "times": 20}},
	{"silent, not stored", map[string]any{"outcome": "silent", "times": 20}},
}

// openServiceBus starts a peer, and follows its journal: the order in which it stored messages, over all queues.
func (b *broker) openServiceBus(ctx context.Context, maxMessage int32) (err error) {
	if b.server, err = harness.NewServiceBusPeer(b.dir, b.log); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := b.server.Start(starting); err != nil {
		return err
	}
	b.url, b.maxMessage = b.server.URL, maxMessage
	for _, topic := range topics {
		if err := b.declare(starting, topic, nil); err != nil {
			return err
		}
	}
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.group.Go(func() { b.follow(ctx) })
	return nil
}

// declare makes a queue sound, but for some settings.
func (b *broker) declare(ctx context.Context, queue string, wrong map[string]any) error {
	settings := map[string]any{"max_size": b.maxMessage}
	maps.Copy(settings, wrong)
	return harness.DeclareAtPeer(ctx, b.url, queue, settings)
}

// trouble makes each queue go wrong for a time, half of it in one way and half in another, so that all ways are tried, and says which.
func (b *broker) trouble(ctx, timed context.Context, d time.Duration, pick uint64) (ways string, err error) {
	var said []string
	for half := range 2 {
		for i, topic := range topics {
			t := troubles[(pick+uint64(half*len(topics)+i))%uint64(len(troubles))]
			said = append(said, topic+": "+t.name)
			err = errors.Join(err, b.declare(ctx, topic, t.settings))
		}
		pause(timed, d/2)
	}
	for _, topic := range topics {
		err = errors.Join(err, b.declare(ctx, topic, nil))
	}
	return strings.Join(said, "; "), err
}

// denyQueue ends the links to the denied queue and refuses new ones, or ends that.
func (b *broker) denyQueue(ctx context.Context, refuse bool) error {
	if !refuse {
		return b.declare(ctx, deniedTopic, nil)
	}
	const condition = "amqp:unauthorized-access"
	return b.declare(ctx, deniedTopic, map[string]any{"refuse": condition, "end": condition})
}

// freeze stops the server's process for a time, with its connections open.
func (b *broker) freeze(ctx context.Context, d time.Duration) error {
	if err := b.server.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, d)
	return b.server.Signal(syscall.SIGCONT)
}

// parseStored reads a line of the peer's journal; false: it is of a queue's settings. The key is what consumers know, the session; where
// it is not the message's own, the message was altered.
func parseStored(line []byte) (a Arrival, is bool) {
	var l struct {
		Session string `json:"session"`
		Message []byte `json:"message"`
	}
	if json.Unmarshal(line, &l) != nil || l.Message == nil {
		return a, false
	}
	var m amqp.Message
	if err := m.UnmarshalBinary(l.Message); err != nil {
		return Arrival{ID: "unreadable: " + err.Error()}, true // which nobody has committed
	}
	text := func(name string) string { value, _ := m.ApplicationProperties[name].(string); return value }
	a = Arrival{ID: text("onward-id"), Key: l.Session, Epoch: text("onward-epoch"), Digest: digest(m.GetData())}
	if key := text("onward-key"); key != l.Session {
		a.Key = fmt.Sprintf("%q in the session %q", key, l.Session)
	}
	return a, true
}

// serviceBusBlock are a relay's settings of the peer at a URL.
func serviceBusBlock(url string) (string, error) {
	connection, err := harness.PeerConnection(url)
	return fmt.Sprintf("servicebus: {connection_string: %q}", connection), err
}

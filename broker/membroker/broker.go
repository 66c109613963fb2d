// Package membroker is a broker in memory, the twin of the real ones in tests and simulations: it keeps what arrived, in
// order, answers as it is told to, and fails in every way that a real broker does. It needs no goroutine and no clock
// unless a latency asks for one, so that a seeded run is repeated exactly.
package membroker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Config is what the broker is like. The zero value takes everything, tells no duplicates apart, names no positions and
// answers within Publish, in the caller's goroutine.
type Config struct {
	// Pipeline: while a message of a key has failed and not all answers are delivered, later ones of its key fail too. They
	// get the same answer, but for Rejected, which becomes Retry: it is not their fault.
	Pipeline  bool
	Positions bool          // answers name a position, a decimal number that grows
	Dedup     time.Duration // for how long a second copy of an id is dropped; 0: never
	MaxBytes  int           // larger payloads are Rejected; 0: no limit
	// Latency is the time from the arrival of a batch to its answers; it is kept by the runtime's clock (or that of
	// testing/synctest). Messages are stored when they are handed over.
	Latency time.Duration
	// Deliver takes each answer to its sender, at a moment and in an order of its own; with it Latency counts for nothing.
	// nil: answers come after Latency. It is called in Publish, and must not call what it is given before it has returned.
	Deliver func(answer func())
	// Stored is told of each message as it is stored, under the broker's lock; nil: nobody is.
	Stored func(Message)
	// Compare: a message with a key is stored only behind the one that was the last of its key when it was handed over, and a
	// second copy never. What comes Late finds its place taken.
	Compare bool
	// Fence: a message of a partition's older owner is refused once one of a newer owner has come.
	Fence bool
	// IDsOnly keeps no headers and payloads, for runs of millions of messages.
	IDsOnly bool
	// Now is the clock of the dedup window and of Message.At; nil: time.Now.
	Now func() time.Time
	// Faults are asked in this order for each message; the first that has a Fault for it decides.
	Faults []Rule
}

// Message is one that arrived. Its slices must not be changed.
type Message struct {
	ID       outbox.ID
	Topic    string
	Key      string
	Seq      int64
	Epoch    int64
	Position int64 // 1 is the first that the broker stored, over all topics
	At       time.Time
	Headers  []Header // as broker.Envelope.Headers yields them
	Payload  []byte
}

// Header is one header as it arrived.
type Header struct{ Name, Value string }

// Broker keeps what its publishers sent. It is safe for concurrent use.
type Broker struct {
	cfg Config

	mu          sync.Mutex
	arrivals    int // messages handed over, counted for the rules
	unavailable bool
	throttle    time.Duration
	faults      []Rule
	log         []Message
	topics      map[string][]int // indexes into log
	seen        map[outbox.ID]sighting
	seenOrder   []outbox.ID // oldest first, for the end of the window
	late        []delayed
	last        map[string]int64    // compare: the position of each key's last message
	epochs      map[int]int64       // fence: of the newest owner of each partition
	failing     map[string]*failure // pipeline: keys whose messages fail at the moment
	changed     chan struct{}       // nil, or what readers wait for: closed when something is stored
}

// delayed is a message that is on its way.
type delayed struct {
	message   Message
	behind    int64 // compare: the last of its key when it was handed over
	partition int
}

type sighting struct {
	at       time.Time
	position int64
}

// New makes an empty broker.
func New(c Config) *Broker {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Broker{
		cfg: c, faults: slices.Clone(c.Faults), topics: map[string][]int{}, seen: map[outbox.ID]sighting{},
		failing: map[string]*failure{}, last: map[string]int64{}, epochs: map[int]int64{},
	}
}

// Publisher makes a publisher of this broker; each relay has its own.
func (b *Broker) Publisher() *Publisher {
	return &Publisher{broker: b, idle: closedChannel()}
}

// SetUnavailable makes the broker take nothing (every answer is Unavailable and Check fails), or take messages again.
func (b *Broker) SetUnavailable(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unavailable = on
}

// SetThrottle makes every answer Throttled with this wait; 0 ends it.
func (b *Broker) SetThrottle(after time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.throttle = after
}

// SetFaults replaces the rules of the configuration. None: no faults.
func (b *Broker) SetFaults(rules ...Rule) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = slices.Clone(rules)
}

// DeliverLate stores the messages whose delivery was Late, in the order in which they were sent, and returns how many
// were not dropped: as duplicates, or because their place is taken or their owner fenced.
func (b *Broker) DeliverLate() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	stored := 0
	for _, d := range b.late {
		if b.cfg.Compare && b.last[d.message.Key] != d.behind || b.fenced(d.partition, d.message.Epoch) {
			continue
		}
		if _, duplicate := b.store(d.message); !duplicate {
			stored++
		}
	}
	b.late = nil
	return stored
}

// Messages returns what arrived for a topic, in order.
func (b *Broker) Messages(topic string) []Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.from(topic, 0)
}

// All returns what arrived for any topic, in order.
func (b *Broker) All() []Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.log)
}

// Len is the number of messages that arrived.
func (b *Broker) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.log)
}

// Read returns what arrived for a topic after the first n messages; it waits until there is any or ctx ends.
func (b *Broker) Read(ctx context.Context, topic string, n int) ([]Message, error) {
	for {
		ms, changed := b.poll(topic, n)
		if len(ms) > 0 {
			return ms, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// poll returns what there is, and a channel that closes when there is more.
func (b *Broker) poll(topic string, n int) ([]Message, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.from(topic, n), b.changed
}

func (b *Broker) from(topic string, n int) []Message {
	var ms []Message
	for _, i := range b.topics[topic][min(n, len(b.topics[topic])):] {
		ms = append(ms, b.log[i])
	}
	return ms
}

// keep copies what the broker keeps of a message: a publisher must not hold on to an envelope after its answer.
func (b *Broker) keep(e *broker.Envelope) Message {
	m := Message{ID: e.ID, Topic: e.Topic, Key: e.Key, Seq: e.Seq, Epoch: e.Epoch}
	if b.cfg.IDsOnly {
		return m
	}
	m.Payload = append([]byte{}, e.Payload...)
	for name, value := range e.Headers() {
		m.Headers = append(m.Headers, Header{name, value})
	}
	return m
}

// store appends a message unless it is a duplicate, and returns its position: a duplicate's is that of the first copy.
func (b *Broker) store(m Message) (position int64, duplicate bool) {
	m.At = b.cfg.Now()
	remembers := b.cfg.Dedup > 0 || b.cfg.Compare && m.Key != ""
	if remembers {
		b.forget(m.At)
		if s, ok := b.seen[m.ID]; ok {
			return s.position, true
		}
	}
	m.Position = int64(len(b.log)) + 1
	b.topics[m.Topic] = append(b.topics[m.Topic], len(b.log))
	b.log = append(b.log, m)
	if remembers {
		b.seen[m.ID] = sighting{m.At, m.Position}
		b.seenOrder = append(b.seenOrder, m.ID)
		b.last[m.Key] = m.Position
	}
	if b.cfg.Stored != nil {
		b.cfg.Stored(m)
	}
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
	return m.Position, false
}

// forget drops the ids whose window is over.
func (b *Broker) forget(now time.Time) {
	if b.cfg.Compare { // by what the topic holds, not by a window
		return
	}
	n := 0
	for n < len(b.seenOrder) && now.Sub(b.seen[b.seenOrder[n]].at) >= b.cfg.Dedup {
		delete(b.seen, b.seenOrder[n])
		n++
	}
	b.seenOrder = b.seenOrder[n:]
}

// fenced reports whether a newer owner of the partition has published; an owner that is the newest is known from then on.
func (b *Broker) fenced(partition int, epoch int64) bool {
	if !b.cfg.Fence {
		return false
	}
	if epoch < b.epochs[partition] {
		return true
	}
	b.epochs[partition] = epoch
	return false
}

package watermill

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onwardhq/onward/outbox"
)

// Names of Watermill's metadata that a TxPublisher knows.
const (
	// NameMetadata is where the components of Watermill's package cqrs write the name of an event or command: the type.
	NameMetadata = "name"
	// CorrelationMetadata is where Watermill's middleware CorrelationID writes it. It goes on as a header as well, so that the
	// middleware finds it at the consumer.
	CorrelationMetadata = "correlation_id"
	// UUIDMetadata is the header with the UUID of a message whose UUID is none: watermill.NewShortUUID and NewULID make such.
	UUIDMetadata = "watermill-uuid"

	contentTypeMetadata = "content-type" // in any case
)

// TxConfig says what becomes of a message of Watermill in the outbox. The zero value is good where no order is wanted.
type TxConfig struct {
	// Key returns what must stay in order (an order id, an account), or "". Nil: KeyMetadata.
	Key func(topic string, m *message.Message) string
	// KeyMetadata is the name of the metadata that holds the key; it goes on as a header as well. Empty, without Key: messages
	// have no key, and no order is kept.
	KeyMetadata string
	// Type returns the type. Nil: what NameMetadata says, or else the topic.
	Type func(topic string, m *message.Message) string
	// ContentType is that of messages whose metadata names none ("content-type", in any case). Empty: outbox.DefaultContentType.
	ContentType string
}

// TxPublisher is a publisher of Watermill that writes into the outbox, within one transaction. Make one for each transaction.
// It is safe for concurrent use.
type TxPublisher struct {
	cfg   TxConfig
	fault error

	mu    sync.Mutex // a transaction runs one statement at a time
	write func(ms []outbox.Message) error
}

var _ message.Publisher = (*TxPublisher)(nil)

// NewTxPublisher returns a publisher into the outbox, whose messages are written in tx by w: sqlite.NewSQLWriter and
// postgres.NewSQLWriter for *sql.Tx, postgres.NewWriter for pgx.Tx. They are published by a relay once the caller has committed,
// and never if the caller rolls back. ctx is that of the transaction; contexts of messages are not asked, for one transaction has
// one. The publisher neither commits nor rolls back.
func NewTxPublisher[T any](ctx context.Context, tx T, w outbox.Writer[T], c TxConfig) *TxPublisher {
	p := &TxPublisher{cfg: c}
	switch {
	case w == nil:
		p.fault = &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "watermill publisher of a transaction", Detail: "there is no writer"}
	case c.Key != nil && c.KeyMetadata != "":
		p.fault = &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: "watermill publisher of a transaction", Detail: "Key and KeyMetadata are both set", Hint: "choose one",
		}
	}
	p.write = func(ms []outbox.Message) error {
		_, err := w.WriteAll(ctx, tx, ms)
		return err
	}
	return p
}

// Publish writes the messages into the outbox, in their order, all or none. When it returns nil they are part of the transaction,
// and nothing was published yet.
//
// The UUID is the id where it is a UUID: a message that is published twice is outbox.ErrDuplicateMessage then. Otherwise the
// message has an id of its own, and the UUID is in the header UUIDMetadata. The payload goes as it is. Metadata become headers,
// but for the content type, and are held to what headers may be: names that Onward keeps for itself (onward-, ce-, nats- and
// others) are outbox.ErrHeaderReserved, what a header line cannot carry is outbox.ErrHeaderInvalid.
//
// Acks and Nacks are not waited for.
func (p *TxPublisher) Publish(topic string, messages ...*message.Message) error {
	if p.fault != nil {
		return p.fault
	}
	ms := make([]outbox.Message, len(messages))
	for i, m := range messages {
		if m == nil {
			return &outbox.Error{Code: outbox.ErrFieldInvalid.Code, Op: "publish into the outbox", Detail: fmt.Sprintf("message %d is nil", i)}
		}
		ms[i] = p.cfg.message(topic, m)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.write == nil {
		return &outbox.Error{
			Code: outbox.ErrNoTransaction.Code, Op: "publish into the outbox", Detail: "the publisher is closed", Hint: "make one for each transaction",
		}
	}
	if len(ms) == 0 {
		return nil
	}
	return p.write(ms)
}

// message is one of Watermill as the outbox has it.
func (c *TxConfig) message(topic string, m *message.Message) outbox.Message {
	out := outbox.Message{
		Topic: topic, Payload: m.Payload, ContentType: c.ContentType, CorrelationID: m.Metadata.Get(CorrelationMetadata),
		Headers: maps.Clone(map[string]string(m.Metadata)),
	}
	for _, name := range slices.Sorted(maps.Keys(m.Metadata)) {
		if strings.EqualFold(name, contentTypeMetadata) {
			out.ContentType = m.Metadata[name]
			delete(out.Headers, name)
		}
	}
	if id, err := outbox.ParseID(m.UUID); err == nil && !id.IsZero() {
		out.ID = id
	} else if m.UUID != "" {
		if out.Headers == nil {
			out.Headers = map[string]string{}
		}
		out.Headers[UUIDMetadata] = m.UUID
	}
	switch {
	case c.Key != nil:
		out.Key = c.Key(topic, m)
	case c.KeyMetadata != "":
		out.Key = m.Metadata.Get(c.KeyMetadata)
	}
	if c.Type != nil {
		out.Type = c.Type(topic, m)
	} else if out.Type = m.Metadata.Get(NameMetadata); out.Type == "" {
		out.Type = topic
	}
	return out
}

// Close ends the publisher, and not the transaction: what was published is written already. Later messages are
// outbox.ErrNoTransaction. It always returns nil.
func (p *TxPublisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write = nil
	return nil
}

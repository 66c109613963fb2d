package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// prepared is a message as the statements take it.
type prepared struct {
	N             int             `json:"n"`
	ID            outbox.ID       `json:"id"`
	Topic         string          `json:"topic"`
	PartitionKey  string          `json:"partition_key"`
	Type          string          `json:"type"`
	Payload       []byte          `json:"payload"` // never nil; base64 in JSON
	ContentType   string          `json:"content_type"`
	Headers       json.RawMessage `json:"headers"`
	Scope         string          `json:"scope"`
	CorrelationID string          `json:"correlation_id"`
	CausationID   string          `json:"causation_id"`
	AggregateType string          `json:"aggregate_type"`
	AggregateID   string          `json:"aggregate_id"`
	EventID       string          `json:"event_id"`
	AvailableAt   string          `json:"available_at,omitempty"` // empty: at once
	Serialize     bool            `json:"serialize"`
}

// preparation is a write that package outbox has nothing against.
type preparation struct {
	ms []prepared // each id once
	at []int      // index into ms of each message of the caller
}

func (w *writing) prepare(ctx context.Context, ms []outbox.Message) (preparation, error) {
	if err := ctx.Err(); err != nil {
		return preparation{}, fmt.Errorf("write messages: %w", err)
	}
	p := preparation{ms: make([]prepared, 0, len(ms)), at: make([]int, len(ms))}
	seen := make(map[outbox.ID]int, len(ms))
	for i := range ms {
		m, err := w.prepareOne(ctx, ms[i])
		if err != nil {
			return preparation{}, err
		}
		first, twice := seen[m.ID]
		if twice && !w.ignore {
			return preparation{}, duplicate(m.ID, "the id occurs twice in this write", nil)
		}
		if p.at[i] = first; !twice {
			seen[m.ID], p.at[i], m.N = len(p.ms), len(p.ms), len(p.ms)
			p.ms = append(p.ms, m)
		}
	}
	return p, nil
}

func (w *writing) prepareOne(ctx context.Context, m outbox.Message) (prepared, error) {
	m, err := w.rules.Prepare(ctx, m)
	if err != nil {
		return prepared{}, err
	}
	p := prepared{
		ID: m.ID, Topic: m.Topic, PartitionKey: m.Key, Type: m.Type, Payload: m.Payload, ContentType: m.ContentType, Scope: m.Scope,
		Headers: json.RawMessage("{}"), CorrelationID: m.CorrelationID, CausationID: m.CausationID, AggregateType: m.AggregateType,
		AggregateID: m.AggregateID, EventID: m.EventID, AvailableAt: availableAt(m.AvailableAt), Serialize: m.Key != "" && w.serializes(m.Topic),
	}
	if p.Payload == nil {
		p.Payload = []byte{}
	}
	if len(m.Headers) > 0 {
		p.Headers, err = json.Marshal(m.Headers)
	}
	return p, err
}

func (w *writing) serializes(topic string) bool {
	return slices.ContainsFunc(w.serialize, func(p outbox.Pattern) bool { return p.Match(topic) })
}

// availableAt is the time as text, which means the same in every driver, session and server.
func availableAt(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format("2006-01-02T15:04:05.000000Z07:00")
}

// parts are the messages in pieces of one statement each.
func (p preparation) parts() iter.Seq[[]prepared] {
	return func(yield func([]prepared) bool) {
		rest := p.ms
		for len(rest) > 0 {
			n, bytes := 0, 0
			for n < len(rest) && n < partMessages && (n == 0 || bytes+len(rest[n].Payload) <= partBytes) {
				bytes += len(rest[n].Payload)
				n++
			}
			if !yield(rest[:n:n]) {
				return
			}
			rest = rest[n:]
		}
	}
}

// serializedKeys are the keys to number, each once.
func (p preparation) serializedKeys() []string {
	var keys []string
	for i := range p.ms {
		if p.ms[i].Serialize {
			keys = append(keys, p.ms[i].PartitionKey)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (p preparation) missing(found map[outbox.ID]outbox.Receipt) []prepared {
	var missing []prepared
	for i := range p.ms {
		if _, ok := found[p.ms[i].ID]; !ok {
			missing = append(missing, p.ms[i])
		}
	}
	return missing
}

// oneArgs are the arguments of source_one.sql.
func oneArgs(m *prepared) []any {
	return []any{
		m.ID.String(), m.Topic, m.PartitionKey, m.Type, m.Payload, m.ContentType, string(m.Headers), m.Scope,
		m.CorrelationID, m.CausationID, m.AggregateType, m.AggregateID, m.EventID, m.AvailableAt, m.Serialize,
	}
}

// arrayArgs are the arguments of source_arrays.sql.
func arrayArgs(ms []prepared) []any {
	column := func(value func(*prepared) string) []string {
		values := make([]string, len(ms))
		for i := range ms {
			values[i] = value(&ms[i])
		}
		return values
	}
	payloads, serialize := make([][]byte, len(ms)), make([]bool, len(ms))
	for i := range ms {
		payloads[i], serialize[i] = ms[i].Payload, ms[i].Serialize
	}
	return []any{
		column(func(m *prepared) string { return m.ID.String() }),
		column(func(m *prepared) string { return m.Topic }),
		column(func(m *prepared) string { return m.PartitionKey }),
		column(func(m *prepared) string { return m.Type }),
		payloads,
		column(func(m *prepared) string { return m.ContentType }),
		column(func(m *prepared) string { return string(m.Headers) }),
		column(func(m *prepared) string { return m.Scope }),
		column(func(m *prepared) string { return m.CorrelationID }),
		column(func(m *prepared) string { return m.CausationID }),
		column(func(m *prepared) string { return m.AggregateType }),
		column(func(m *prepared) string { return m.AggregateID }),
		column(func(m *prepared) string { return m.EventID }),
		column(func(m *prepared) string { return m.AvailableAt }),
		serialize,
	}
}

// jsonArgs are the arguments of source_json.sql.
func jsonArgs(ms []prepared) []any { return []any{jsonOf(ms)} }

func jsonOf(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and bytes: nothing that JSON cannot say
	}
	return string(text)
}

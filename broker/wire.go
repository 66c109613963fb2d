package broker

import (
	"iter"
	"slices"
	"strconv"

	"github.com/onwardhq/onward/outbox"
)

// Header is one header of a message that goes out.
type Header struct{ Name, Value string }

// Outgoing is a message as it goes out. A publisher keeps one for each goroutine that encodes and uses it again for the
// next message: Wire.Encode overwrites it, and the memory of Headers with it. The strings and the payload stay.
type Outgoing struct {
	// Topic is where it goes: a subject, a topic, a stream. Never empty. Key and RoutingKey may be.
	Topic, Key, RoutingKey string
	// ContentType is that of Payload, for brokers with a slot of their own for it.
	ContentType string
	// Headers in a fixed order: what the format says of the message, wire_fields, the message's own, sorted. The broker's
	// own slots (docs/names.md, section 1) are not among them.
	Headers []Header
	// Payload is the envelope's own, which must not be changed, or in cloudevents-structured new memory for each message.
	Payload []byte

	names []string // scratch of sorting
}

// Wire turns envelopes into what goes out, as a sink's settings say. It is made once, by NewWire, never changes, and is
// safe for concurrent use.
type Wire struct {
	format  Format
	style   Style
	source  string
	fields  fields
	setting string // of Describe

	topic, key, routingKey *Template

	attributes [len(attributes)]string // their names as headers
}

// NewWire checks the settings and builds the encoder of a broker. Its error is that of WireConfig.Validate.
func NewWire(c WireConfig, s Style) (*Wire, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	w := &Wire{format: c.Format, style: s, source: c.Source, setting: c.describe(), attributes: s.attributeHeaders()}
	for _, name := range c.Fields {
		w.fields |= fieldNames[name]
	}
	w.topic, _ = ParseTemplate(c.Topic) // checked by Validate
	w.key, _ = ParseTemplate(c.Key)
	w.routingKey, _ = ParseTemplate(c.RoutingKey)
	return w, nil
}

// Format is the one that the settings ask for; never empty.
func (w *Wire) Format() Format { return w.format }

// Describe names the settings that are not the defaults, for Describer.
func (w *Wire) Describe() string { return w.setting }

// Topic is what Encode names Outgoing.Topic, for publishers that need it earlier. Its error is one of Encode's.
func (w *Wire) Topic(e *Envelope) (string, error) {
	name, err := w.topic.Expand(e)
	if err == nil && name == "" && e.Record.Topic != "" { // a message has a topic; one without is no fault of the template
		err = w.topic.fault("it gives an empty name for this message", nil)
	}
	return name, err
}

// Encode fills out. It allocates the values that have to be made (ids, times and numbers as text), and the memory of
// out.Headers where that is too small.
//
// An error is an *outbox.Error and the fault of this message: Refuse makes the answer for it. It is CodeTemplateFailed
// where a template fails for the message or gives a name that is empty or cannot be sent, and outbox.ErrFieldInvalid
// where a text is not valid UTF-8 and the format is JSON.
func (w *Wire) Encode(e *Envelope, out *Outgoing) error {
	if err := w.name(e, out); err != nil {
		return err
	}
	out.Headers, out.names = out.Headers[:0], out.names[:0]
	for name := range e.Record.Headers {
		out.names = append(out.names, name)
	}
	slices.Sort(out.names)
	out.ContentType, out.Payload = e.ContentType, e.Payload
	switch w.format {
	case FormatBinary:
		w.binary(e, out)
	case FormatStructured:
		if err := w.structured(e, out); err != nil {
			return err
		}
	default:
		out.raw(e)
	}
	w.fields.add(e, out)
	for _, name := range out.names {
		out.Headers = append(out.Headers, Header{name, e.Record.Headers[name]})
	}
	return nil
}

// Refuse is the answer for a message that Encode, or a check of the publisher's own, has an error for.
func Refuse(err error) Result {
	code := outbox.CodeOf(err)
	if code == "" {
		code = CodeRejected
	}
	return Result{Outcome: Rejected, Code: code, Err: err}
}

// name fills in what the templates say.
func (w *Wire) name(e *Envelope, out *Outgoing) (err error) {
	if out.Topic, err = w.Topic(e); err != nil {
		return err
	}
	if out.Key, err = w.key.Expand(e); err != nil {
		return err
	}
	out.RoutingKey, err = w.routingKey.Expand(e)
	return err
}

// Headers yields the headers of the raw format, in one order for the same message: Onward's own, then the message's
// under their own names, sorted. Publishers send what Wire.Encode says instead, which is the same where the sink asks for
// nothing else. Error texts, attempts and table names are never among them.
func (e Envelope) Headers() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		var out Outgoing
		_ = rawWire.Encode(&e, &out) // never fails with topics and keys as they are, and without JSON
		for _, h := range out.Headers {
			if !yield(h.Name, h.Value) {
				return
			}
		}
	}
}

var rawWire = &Wire{format: FormatRaw, topic: plainTemplate("Topic"), key: plainTemplate("Key"), routingKey: plainTemplate("Topic")}

// raw: docs/names.md, section 1.
func (out *Outgoing) raw(e *Envelope) {
	out.add("onward-id", e.ID.String())
	out.add("onward-type", e.Type)
	out.add("onward-topic", e.Record.Topic)
	out.add("onward-key", e.Record.Key)
	out.add("content-type", e.Record.ContentType)
	out.add("onward-time", e.CreatedAt.UTC().Format(timeFormat))
	out.add("onward-correlation-id", e.CorrelationID)
	out.add("onward-causation-id", e.CausationID)
	out.add("onward-seq", strconv.FormatInt(e.Seq, 10))
	out.add("onward-epoch", strconv.FormatInt(e.Epoch, 10))
	out.add("onward-lineage", e.Lineage)
	if e.KeySeq != 0 {
		out.add("onward-key-seq", strconv.FormatInt(e.KeySeq, 10))
	}
}

// add adds a header of Onward's; what says nothing is left out.
func (out *Outgoing) add(name, value string) {
	if value != "" {
		out.Headers = append(out.Headers, Header{name, value})
	}
}

// timeFormat is RFC 3339 with microseconds, as onward-time has it.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// roomOfTexts is what the headers of a raw message can come to at the limits of their fields, with 4 bytes of punctuation
// for each, of which there are 256 of the message's own at the most that is reckoned with.
const roomOfTexts = outbox.MaxHeaders + 256*4 + outbox.MaxType + outbox.MaxTopic + outbox.MaxKey + 3*outbox.MaxField + 1024

// Overhead is the most that the headers of a message come to, at the limits of all its fields, and in
// cloudevents-structured what stands around the data as well: in bytes, with 4 for the punctuation of each header and
// room for the broker's own slots.
func (w *Wire) Overhead() int {
	n := roomOfTexts
	if w.fields != 0 {
		n += outbox.MaxScope + 3*outbox.MaxField + 512
	}
	if w.format == FormatRaw {
		return n
	}
	// The attributes, each byte written as three (%XX) or two (\"); trace headers may be the whole of the message's own.
	return n + 3*(outbox.MaxHeaders+outbox.MaxType+outbox.MaxKey+4*outbox.MaxField) + len(w.source)*3 + 1024
}

// MaxPayload is the largest payload that arrives in a message of limit bytes, headers and all, whatever its other fields
// are: for Capabilities.MaxBytes of a broker whose limit counts them. At least 1.
func (w *Wire) MaxPayload(limit int) int {
	n := limit - w.Overhead()
	if w.format == FormatStructured {
		n = n / 4 * 3 // base64
	}
	return max(1, n)
}

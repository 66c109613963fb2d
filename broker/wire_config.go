package broker

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/onwardhq/onward/outbox"
)

// Format is how a message is written for the wire.
type Format string

// The formats.
const (
	FormatRaw        Format = "raw"                    // the payload as it is, what is said of it in headers called onward-...
	FormatBinary     Format = "cloudevents-binary"     // the payload as it is, CloudEvents 1.0 attributes in headers
	FormatStructured Format = "cloudevents-structured" // one JSON object with attributes and payload, CloudEvents 1.0
)

// Style is how a broker writes the attributes of CloudEvents as headers (its protocol binding).
type Style uint8

// The styles.
const (
	StyleNATS  Style = iota + 1 // ce-id, values percent-encoded; ce-datacontenttype
	StyleKafka                  // ce_id; content-type
	StyleAMQP                   // cloudEvents_id; the content type in the message's property alone
	StyleHTTP                   // ce-id, values percent-encoded; content-type
	StyleRedis                  // ce-id; ce-datacontenttype
)

// WireConfig is what a sink's settings say of its messages on the wire. The zero value is the raw format.
type WireConfig struct {
	Format Format // empty: FormatRaw
	// Source is the source of CloudEvents: a URI reference, such as /shop/orders or https://shop.example/orders. Needed by
	// their formats, and by no other.
	Source string
	// Fields are those that go out only where they are listed, as headers called onward-... in every format: scope,
	// aggregate_type, aggregate_id, event_id, and diagnosis (the relay and the attempt).
	Fields []string
	// Topic, Key and RoutingKey are templates of the names at the broker; see ParseTemplate. Empty: {{.Topic}}, {{.Key}} and
	// {{.Topic}}. A message for which one fails is Rejected with CodeTemplateFailed. Messages of one key stay in order at
	// the broker only where they get one topic and one key there.
	Topic, Key, RoutingKey string
}

// WireFault is what is wrong with one setting.
type WireFault struct {
	Setting string // its name below sinks[]: format, source, wire_fields, topic_template, key_template, routing_key_template
	Detail  string
}

// Validate reports all faults at once.
func (c WireConfig) Validate() error {
	var faults []string
	for _, f := range c.Faults() {
		faults = append(faults, f.Setting+" "+f.Detail)
	}
	if faults == nil {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "wire format", Detail: strings.Join(faults, "; ")}
}

// Faults are what is wrong, setting by setting.
func (c WireConfig) Faults() (faults []WireFault) {
	add := func(setting, format string, args ...any) {
		faults = append(faults, WireFault{setting, fmt.Sprintf(format, args...)})
	}
	switch c.withDefaults().Format {
	case FormatRaw:
		if c.Source != "" {
			add("source", "is for the formats %s and %s", FormatBinary, FormatStructured)
		}
	case FormatBinary, FormatStructured:
		if fault := sourceFault(c.Source); fault != "" {
			add("source", "%s", fault)
		}
	default:
		add("format", "%q is not one of %s, %s, %s", c.Format, FormatRaw, FormatBinary, FormatStructured)
	}
	for _, name := range c.Fields {
		if fieldNames[name] == 0 {
			add("wire_fields", "%q is not one of %s", name, strings.Join(slices.Sorted(maps.Keys(fieldNames)), ", "))
		}
	}
	c = c.withDefaults()
	for _, t := range [...]struct {
		setting, text string
		needed        bool
	}{{"topic_template", c.Topic, true}, {"key_template", c.Key, false}, {"routing_key_template", c.RoutingKey, false}} {
		if fault := checkTemplate(t.text, t.needed); fault != "" {
			add(t.setting, "%q %s", t.text, fault)
		}
	}
	return faults
}

// sourceFault says why a text is no source of CloudEvents.
func sourceFault(source string) string {
	if source == "" {
		return "is missing: name what the messages come from, such as /shop/orders or https://shop.example/orders"
	}
	for i := range len(source) {
		if source[i] <= ' ' || source[i] >= 0x7f || strings.IndexByte(`"<>\^`+"`{|}", source[i]) >= 0 {
			return fmt.Sprintf("%q is not a URI reference: write %q as %%%02X", source, string(source[i]), source[i])
		}
	}
	if _, err := url.Parse(source); err != nil {
		return fmt.Sprintf("%q is not a URI reference", source)
	}
	return ""
}

func (c WireConfig) withDefaults() WireConfig {
	fill := func(field *string, text string) {
		if *field == "" {
			*field = text
		}
	}
	fill((*string)(&c.Format), string(FormatRaw))
	fill(&c.Topic, "{{.Topic}}")
	fill(&c.Key, "{{.Key}}")
	fill(&c.RoutingKey, "{{.Topic}}")
	return c
}

// describe is what is not a default, as Describer has it.
func (c WireConfig) describe() string {
	var line []string
	c = c.withDefaults()
	for _, s := range [...]struct{ name, value, usual string }{
		{"format", string(c.Format), string(FormatRaw)},
		{"source", c.Source, ""},
		{"wire_fields", strings.Join(slices.Compact(slices.Sorted(slices.Values(c.Fields))), ","), ""},
		{"topic_template", c.Topic, "{{.Topic}}"},
		{"key_template", c.Key, "{{.Key}}"},
		{"routing_key_template", c.RoutingKey, "{{.Topic}}"},
	} {
		if s.value == s.usual {
			continue
		}
		if strings.ContainsAny(s.value, " \t\n\"") {
			s.value = strconv.Quote(s.value)
		}
		line = append(line, s.name+"="+s.value)
	}
	return strings.Join(line, " ")
}

// fields are those that go out only where a sink lists them.
type fields uint8

const (
	fieldScope fields = 1 << iota
	fieldAggregateType
	fieldAggregateID
	fieldEventID
	fieldDiagnosis
)

var fieldNames = map[string]fields{
	"scope": fieldScope, "aggregate_type": fieldAggregateType, "aggregate_id": fieldAggregateID, "event_id": fieldEventID,
	"diagnosis": fieldDiagnosis,
}

func (f fields) add(e *Envelope, out *Outgoing) {
	if f&fieldScope != 0 {
		out.add("onward-scope", e.Scope)
	}
	if f&fieldAggregateType != 0 {
		out.add("onward-aggregate-type", e.AggregateType)
	}
	if f&fieldAggregateID != 0 {
		out.add("onward-aggregate-id", e.AggregateID)
	}
	if f&fieldEventID != 0 {
		out.add("onward-event-id", e.EventID)
	}
	if f&fieldDiagnosis != 0 {
		out.add("onward-relay", e.Relay)
		out.add("onward-attempt", strconv.Itoa(e.Attempt))
	}
}

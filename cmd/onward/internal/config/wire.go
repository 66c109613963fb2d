package config

import (
	"slices"
	"strings"

	"github.com/onwardhq/onward/broker"
)

// namesOf says which templates a broker has a use for: what it calls by a name.
var namesOf = map[string][]string{
	"nats":       {"topic_template"},
	"kafka":      {"topic_template", "key_template"},
	"amqp":       {"routing_key_template"},
	"amqps":      {"routing_key_template"},
	"redis":      {"topic_template"},
	"rediss":     {"topic_template"},
	"servicebus": {"topic_template", "key_template"},
	"jsonl":      nil,
	"https":      nil,
	"http":       nil,
	"discard":    {"topic_template", "key_template", "routing_key_template"}, // stands for any other
}

// wire refuses formats and templates that cannot be used, also those that the sink's broker has no use for.
func (k *checker) wire(path string, s *Sink) {
	c := s.Wire()
	for _, f := range c.Faults() {
		if f.Setting != "source" || f.Detail == "" || c.Source != "" || k.need >= NeedRelay {
			k.that(false, path+"."+f.Setting, "%s", f.Detail)
		}
	}
	if s.DeadTopic != "" {
		_, err := broker.ParseTemplate(s.DeadTopic)
		k.that(err == nil, path+".dead_topic", "%v", err)
	}
	scheme := s.Scheme()
	names, known := namesOf[scheme]
	if !known {
		return // the URL is refused, or not there yet
	}
	for _, t := range [...]struct{ name, text string }{{"topic_template", c.Topic}, {"key_template", c.Key}, {"routing_key_template", c.RoutingKey}} {
		use := "it has " + strings.Join(names, " and ")
		if names == nil {
			use = "it has no names"
		}
		k.that(t.text == "" || slices.Contains(names, t.name), path+"."+t.name, "is not for %s: %s", scheme, use)
	}
	if scheme == "jsonl" {
		k.that(c.Format != broker.FormatBinary, path+".format", "%q is not for jsonl: a line has no headers; %s is", c.Format, broker.FormatStructured)
		k.that(c.Format != broker.FormatStructured || s.DeadTopic == "", path+".dead_topic", "is not for jsonl with %s: a line has no headers for the cause", c.Format)
		k.that(c.Format != broker.FormatStructured || len(c.Fields) == 0, path+".wire_fields", "are not for jsonl with %s: a line has no headers", c.Format)
	}
}

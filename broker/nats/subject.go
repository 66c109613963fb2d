package nats

import (
	"fmt"
	"strings"

	"github.com/onwardhq/onward/outbox"
)

// checkSubject says why a topic cannot be published to as a subject, or nil. The server itself checks less: it takes a
// subject with a wildcard or a blank to be another one, and answers requests to its own.
func checkSubject(topic string) error {
	if topic == "" {
		return fmt.Errorf("nats: the topic is empty")
	}
	for i := range len(topic) {
		if topic[i] <= ' ' || topic[i] == 0x7f {
			return fmt.Errorf("nats: topic %q is no subject: it has a blank or control character", topic)
		}
	}
	first, rest, more := strings.Cut(topic, ".")
	if strings.HasPrefix(first, "$") && first != "$KV" || first == "_INBOX" || first == "_R_" {
		return fmt.Errorf("nats: topic %q is no subject for messages: %s belongs to the server", topic, first)
	}
	for word := first; ; word, rest, more = strings.Cut(rest, ".") {
		switch word {
		case "":
			return fmt.Errorf("nats: topic %q is no subject: it has an empty word", topic)
		case "*", ">":
			return fmt.Errorf("nats: topic %q is no subject: %s is a wildcard", topic, word)
		}
		if !more {
			return nil
		}
	}
}

// covers reports whether one of a stream's subjects, which may have wildcards, takes the topic.
func covers(subjects []string, topic string) bool {
	for _, s := range subjects {
		if outbox.Pattern(s).Match(topic) { // NATS and Onward match words alike
			return true
		}
	}
	return false
}

// checkStreamName says why a text cannot be a stream's name, or nil.
func checkStreamName(name string) error {
	if name == "" {
		return fmt.Errorf("stream is missing: name the stream that takes the messages")
	}
	if len(name) > 255 || strings.ContainsAny(name, " \t\r\n\f.*>/\\") {
		return fmt.Errorf("stream %q is no stream's name: blanks, . * > / and \\ are not allowed, nor more than 255 bytes", name)
	}
	return nil
}

package outbox

import (
	"errors"
	"slices"
	"strings"
)

// Pattern selects topics: words separated by dots, where * stands for exactly one word and > as the last word for one
// or more. "orders.*" selects orders.paid; "orders.>" selects orders.paid and orders.paid.eu; ">" selects every topic.
type Pattern string

// Validate refuses an empty pattern, empty words, a > that is not the last word, and words that mix a wildcard with
// other characters.
func (p Pattern) Validate() error {
	bad := func(why string) error {
		return &Error{
			Code: ErrConfigInvalid.Code, Op: "topic pattern \"" + string(p) + "\"", Detail: why,
			Hint: "write words separated by dots; * is one word, > at the end the rest",
		}
	}
	words := strings.Split(string(p), ".")
	for i, w := range words {
		switch {
		case w == "":
			return bad("a word is empty")
		case w == ">" && i != len(words)-1:
			return bad("> must be the last word")
		case w != "*" && w != ">" && strings.ContainsAny(w, "*>"):
			return bad("* and > stand for whole words")
		}
	}
	return nil
}

// Match reports whether the topic is selected. The pattern must be valid.
func (p Pattern) Match(topic string) bool {
	rest := string(p)
	for {
		word, more, further := strings.Cut(rest, ".")
		if word == ">" {
			return topic != ""
		}
		topicWord, topicRest, topicFurther := strings.Cut(topic, ".")
		if word != "*" && word != topicWord || topicWord == "" {
			return false
		}
		if !further || !topicFurther {
			return further == topicFurther
		}
		rest, topic = more, topicRest
	}
}

// Selection is which topics are taken: those that any of Topics selects (none: every topic), but for those that any of
// Exclude selects. The zero value takes every topic.
type Selection struct {
	Topics  []Pattern `json:"topics,omitempty"`
	Exclude []Pattern `json:"exclude,omitempty"`
}

// All reports whether every topic is taken.
func (s Selection) All() bool {
	return len(s.Exclude) == 0 && (len(s.Topics) == 0 || slices.Contains(s.Topics, ">"))
}

// Match reports whether the topic is taken. The patterns must be valid.
func (s Selection) Match(topic string) bool {
	of := func(p Pattern) bool { return p.Match(topic) }
	return (len(s.Topics) == 0 || slices.ContainsFunc(s.Topics, of)) && !slices.ContainsFunc(s.Exclude, of)
}

// Validate returns what Pattern.Validate says of every pattern that it refuses.
func (s Selection) Validate() error {
	var errs []error
	for _, p := range slices.Concat(s.Topics, s.Exclude) {
		errs = append(errs, p.Validate())
	}
	return errors.Join(errs...)
}

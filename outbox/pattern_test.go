package outbox_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/onwardhq/onward/outbox"
)

func TestPatternSelects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern  outbox.Pattern
		yes, not string // topics
	}{
		{"orders", "orders", "order orders.paid Orders"},
		{"orders.paid", "orders.paid", "orders orders.paid.eu orders.paidx orders..paid"},
		{"*", "orders x", "orders.paid . .a a."},
		{"orders.*", "orders.paid orders.x", "orders orders.paid.eu orders."},
		{"*.paid", "orders.paid x.paid", "paid orders.paid.eu .paid"},
		{"orders.>", "orders.paid orders.paid.eu", "orders ordersx.paid"},
		{"*.>", "a.b a.b.c", "a"},
		{">", "orders orders.paid.eu", ""},
		{"日本.*", "日本.語", "日.本"},
	} {
		if err := c.pattern.Validate(); err != nil {
			t.Errorf("%s: %v", c.pattern, err)
		}
		for _, topic := range strings.Fields(c.yes) {
			if !c.pattern.Match(topic) {
				t.Errorf("%s does not select %s", c.pattern, topic)
			}
		}
		for _, topic := range append(strings.Fields(c.not), "") {
			if c.pattern.Match(topic) {
				t.Errorf("%s selects %q", c.pattern, topic)
			}
		}
	}
}

func TestPatternsThatAreRefused(t *testing.T) {
	t.Parallel()
	for pattern, why := range map[outbox.Pattern]string{
		"": "a word is empty", ".": "a word is empty", "a.": "a word is empty", ".a": "a word is empty", "a..b": "a word is empty",
		"a.>.b": "> must be the last word", ">.a": "> must be the last word", ">.>": "> must be the last word",
		"a*": "whole words", "a.b>": "whole words", "**": "whole words", "a.*>": "whole words",
	} {
		err := pattern.Validate()
		if !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), `"`+string(pattern)+`"`) || outbox.Hint(err) == "" {
			t.Errorf("%q: %v, want %q", pattern, err, why)
		}
	}
}

// FuzzPattern holds Match against a regular expression that says the same.
func FuzzPattern(f *testing.F) {
	for _, s := range [][2]string{{"orders.*", "orders.paid"}, {"orders.>", "orders.paid.eu"}, {">", "a"}, {"*.b.*", "a.b.c"}, {"*", "."}, {"a", "a\n"}, {"a.*", "a."}, {"\xff", "\xff"}, {"(.*", "(.a"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, topic string) {
		p := outbox.Pattern(pattern)
		got := p.Match(topic) // must not panic, valid or not
		if p.Validate() != nil || strings.Contains("."+topic+".", "..") {
			return // empty words are no subject of any broker; > takes what is left of such a topic
		}
		words := strings.Split(regexp.QuoteMeta(pattern), `\.`)
		for i, w := range words {
			switch w {
			case `\*`:
				words[i] = `[^.]+`
			case ">":
				words[i] = `(?s:.+)`
			}
		}
		want, err := regexp.Compile(`\A` + strings.Join(words, `\.`) + `\z`)
		if err != nil {
			return // not UTF-8: regexp has nothing to say
		}
		if got != want.MatchString(topic) {
			t.Errorf("%q selects %q: %v, want %v", pattern, topic, got, !got)
		}
	})
}

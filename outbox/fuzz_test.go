package outbox_test

import (
	"crypto/sha256"
	"math/big"
	"strings"
	"testing"

	"github.com/onwardhq/onward/outbox"
)

// The hash of docs/names.md, by other means: the first four bytes as a number, modulo. Twice as many partitions split each in
// two.
func FuzzPartitionOf(f *testing.F) {
	for _, key := range []string{"", "a", `a\b`, "ünï", "日本", "\x00", "\xff", strings.Repeat("k", 255)} {
		f.Add(key, uint8(6), []byte("0123456789abcdef"))
	}
	f.Fuzz(func(t *testing.T, key string, power uint8, id []byte) {
		var of outbox.ID
		copy(of[:], id)
		n := 1 << (power % 15)
		text := key
		if text == "" {
			text = of.String()
		}
		sum := sha256.Sum256([]byte(text))
		want := new(big.Int).Mod(new(big.Int).SetBytes(sum[:4]), big.NewInt(int64(n))).Int64()
		got := outbox.PartitionOf(key, of, n)
		if int64(got) != want {
			t.Errorf("key %q is in partition %d of %d, want %d", key, got, n, want)
		}
		if twice := outbox.PartitionOf(key, of, 2*n); twice != got && twice != got+n {
			t.Errorf("key %q is in partition %d of %d, and %d of %d", key, got, n, twice, 2*n)
		}
	})
}

// naive matches word by word, without a thought for speed.
func naive(pattern, topic []string) bool {
	switch {
	case len(pattern) == 0 || len(topic) == 0:
		return len(pattern) == len(topic)
	case pattern[0] == ">":
		return true
	default:
		return (pattern[0] == "*" || pattern[0] == topic[0]) && naive(pattern[1:], topic[1:])
	}
}

func FuzzSelection(f *testing.F) {
	for _, s := range [][3]string{{"", "", "a"}, {"orders.*,users.>", "orders.test", "orders.paid"}, {">", "a.>", "a.b"}, {"a", "*", "a"}, {"*.*", "", "a"}, {"a.b.c", "", "a.b"}} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, takes, leaves, topic string) {
		var s outbox.Selection
		patterns := func(list string) (all []outbox.Pattern) {
			for word := range strings.SplitSeq(list, ",") {
				if word != "" {
					all = append(all, outbox.Pattern(word))
				}
			}
			return all
		}
		s.Topics, s.Exclude = patterns(takes), patterns(leaves)
		if topic == "" || s.Validate() != nil || strings.Contains("."+topic+".", "..") {
			return // empty words are no subject of any broker; > takes what is left of such a topic
		}
		selects := func(all []outbox.Pattern) bool {
			for _, p := range all {
				if naive(strings.Split(string(p), "."), strings.Split(topic, ".")) {
					return true
				}
			}
			return false
		}
		want := (len(s.Topics) == 0 || selects(s.Topics)) && !selects(s.Exclude)
		if got := s.Match(topic); got != want {
			t.Errorf("%q without %q takes %q: %v, want %v", s.Topics, s.Exclude, topic, got, want)
		}
		if s.All() && !s.Match(topic) {
			t.Errorf("%q without %q is said to take all, and not %q", s.Topics, s.Exclude, topic)
		}
	})
}

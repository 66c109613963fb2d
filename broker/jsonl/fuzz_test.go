package jsonl

import (
	"net/url"
	"strings"
	"testing"
)

// Every path has an address that leads to it, in both forms.
func FuzzParseURL(f *testing.F) {
	for _, path := range []string{"/var/log/events.jsonl", "events.jsonl", "/a b%20?#&.jsonl", "/ü", "/-", "./x", "/a:b", "/%zz", "//x/y", "/\x7f", "a\nb"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if path == "" || strings.ContainsRune(path, 0) || strings.HasSuffix(path, "/") {
			return // no file
		}
		words := strings.Split(path, "/")
		for i := range words {
			words[i] = url.PathEscape(words[i])
		}
		escaped := strings.Join(words, "/")
		addresses := []string{"jsonl:" + escaped}
		if strings.HasPrefix(path, "/") {
			addresses = []string{"jsonl://" + escaped}
			if !strings.HasPrefix(path, "//") { // else what follows is a host
				addresses = append(addresses, "jsonl:"+escaped)
			}
		}
		for _, address := range addresses {
			if c, err := ParseURL(address); err != nil || c.Path != path {
				t.Errorf("%q is the file %q (%v), want %q", address, c.Path, err, path)
			}
		}
	})
}

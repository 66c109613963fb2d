package jsontext_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/onwardhq/onward/internal/jsontext"
)

// What is written is read back as it was, by another one's parser.
func FuzzAppend(f *testing.F) {
	for _, s := range []string{"", `"\`, "a\r\n\t\x00\x1f\x7f", "ü\u2028🎉", "<&>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return
		}
		var back string
		if err := json.Unmarshal(jsontext.Append(nil, "", s), &back); err != nil || back != s {
			t.Errorf("%q came back as %q: %v", s, back, err)
		}
		if asBytes := jsontext.Append(nil, ":", []byte(s)); string(asBytes) != string(jsontext.Append(nil, ":", s)) {
			t.Errorf("%q is written otherwise as bytes: %s", s, asBytes)
		}
	})
}

func TestContentTypesOfJSON(t *testing.T) {
	t.Parallel()
	for contentType, want := range map[string]bool{
		"application/json": true, "Application/JSON ; charset=utf-8": true, "application/vnd.shop+json": true, "application/cloudevents+json;x": true,
		"": false, "text/json": false, "application/jsonl": false, "application/octet-stream;x=+json": false,
	} {
		if got := jsontext.Says(contentType); got != want {
			t.Errorf("%q: %t, want %t", contentType, got, want)
		}
	}
}

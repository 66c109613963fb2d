// Package jsontext writes JSON by hand where encoding/json would change what it is given: it removes a payload's blanks.
package jsontext

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// Append writes valid UTF-8 as a JSON string (RFC 8259, section 7), with what stands before it: quotes, backslashes and
// control characters are escaped, and nothing else.
func Append[T string | []byte](b []byte, before string, text T) []byte {
	b = append(append(b, before...), '"')
	written := 0
	for i := range len(text) {
		c := text[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, text[written:i]...)
		written = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(append(b, text[written:]...), '"')
}

// Says reports whether a content type says that the content is JSON, whatever its parameters.
func Says(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// Valid reports whether bytes are one JSON value in UTF-8.
func Valid(b []byte) bool { return utf8.Valid(b) && json.Valid(b) }

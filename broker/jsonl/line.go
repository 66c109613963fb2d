package jsonl

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// timeFormat is RFC 3339 with microseconds, as onward-time has it.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// appendLine appends a message as one line with its line break. The fields are those of the raw format without their
// prefix (docs/names.md, section 1), in one order; what is empty is left out. encoding/json is not used because it
// changes payloads: it removes their blanks.
func appendLine(b []byte, e broker.Envelope) ([]byte, error) {
	if err := checkTexts(e); err != nil {
		return b, err
	}
	b = appendText(b, `{"id":`, e.ID.String())
	b = appendText(b, `,"topic":`, e.Topic)
	b = appendOptional(b, `,"key":`, e.Key)
	b = appendText(b, `,"type":`, e.Type)
	b = appendText(b, `,"created_at":`, e.CreatedAt.UTC().Format(timeFormat))
	b = appendNumber(b, `,"seq":`, e.Seq)
	if e.KeySeq != 0 {
		b = appendNumber(b, `,"key_seq":`, e.KeySeq)
	}
	b = appendNumber(b, `,"epoch":`, e.Epoch)
	b = appendOptional(b, `,"lineage":`, e.Lineage)
	b = appendOptional(b, `,"correlation_id":`, e.CorrelationID)
	b = appendOptional(b, `,"causation_id":`, e.CausationID)
	b = appendOptional(b, `,"content_type":`, e.ContentType)
	if len(e.Record.Headers) > 0 {
		before := `,"headers":{`
		for _, name := range slices.Sorted(maps.Keys(e.Record.Headers)) {
			b = appendText(b, before, name)
			b = appendText(b, ":", e.Record.Headers[name])
			before = ","
		}
		b = append(b, '}')
	}
	return append(appendPayload(b, e.ContentType, e.Payload), "}\n"...), nil
}

// appendPayload writes the payload so that its bytes can be had back: as it is where it is JSON on one line, as text
// where it is text, and as base64 else. An empty one is left out.
func appendPayload(b []byte, contentType string, payload []byte) []byte {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	isJSON := media == "application/json" || strings.HasSuffix(media, "+json")
	switch {
	case len(payload) == 0:
		return b
	case isJSON && isOneLine(payload) && utf8.Valid(payload) && json.Valid(payload):
		return append(append(b, `,"payload":`...), payload...)
	case (isJSON || strings.HasPrefix(media, "text/")) && utf8.Valid(payload) && !slices.Contains(payload, 0):
		return appendText(b, `,"payload_text":`, payload)
	default:
		b = append(b, `,"payload_base64":"`...)
		return append(base64.StdEncoding.AppendEncode(b, payload), '"')
	}
}

// isOneLine: JSON that can stand in a line, and that a parser can give back with all its bytes: blanks around a value
// belong to nobody.
func isOneLine(payload []byte) bool {
	first, last := payload[0], payload[len(payload)-1]
	if first == ' ' || first == '\t' || last == ' ' || last == '\t' {
		return false
	}
	return !slices.Contains(payload, '\n') && !slices.Contains(payload, '\r')
}

// checkTexts refuses what a JSON string cannot carry. The database holds its own messages to this already.
func checkTexts(e broker.Envelope) error {
	texts := []string{e.Topic, e.Key, e.Type, e.ContentType, e.CorrelationID, e.CausationID, e.Lineage}
	for name, value := range e.Record.Headers {
		texts = append(texts, name, value)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return &outbox.Error{Code: outbox.ErrFieldInvalid.Code, Op: "write line", Detail: fmt.Sprintf("%.60q is not valid UTF-8", text)}
		}
	}
	return nil
}

func appendOptional(b []byte, before, text string) []byte {
	if text == "" {
		return b
	}
	return appendText(b, before, text)
}

func appendNumber(b []byte, before string, n int64) []byte {
	return strconv.AppendInt(append(b, before...), n, 10)
}

const hexDigits = "0123456789abcdef"

// appendText writes valid UTF-8 as a JSON string (RFC 8259, section 7): quotes, backslashes and control characters are
// escaped, and nothing else.
func appendText[T string | []byte](b []byte, before string, text T) []byte {
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

package outboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onwardhq/onward/outbox"
)

// Source tells what a transaction has written so far: the writers of stores do, and Recorder.
type Source[T any] interface {
	Written(ctx context.Context, tx T) ([]outbox.Record, error)
}

// RequireWritten ends the test unless the transaction has written these messages so far, no others, in this order. The
// service's own writer is the source, because it knows the tables:
//
//	outboxtest.RequireWritten(t, out, tx, outbox.Message{Topic: "orders", Type: "OrderPaid", Key: "7"})
//
// Fields that are empty in a message that is wanted may be anything, and so may headers that it does not name; a payload
// that is empty and not nil has to be empty. A payload of JSON is compared by what it says, any other one byte for byte. Without messages nothing may have been written.
func RequireWritten[T any](t testing.TB, source Source[T], tx T, want ...outbox.Message) {
	t.Helper()
	got, err := source.Written(t.Context(), tx)
	if err != nil {
		t.Fatalf("outboxtest: ask what was written: %v", err)
	}
	if lines, same := compare(want, got); !same {
		t.Fatalf("the transaction wrote %d messages, want %d:\n%s", len(got), len(want), strings.Join(lines, "\n"))
	}
}

// compare lines the two up so that as many messages as can be are the same, and says what is with each.
func compare(want []outbox.Message, got []outbox.Record) (lines []string, same bool) {
	if slices.EqualFunc(want, got, func(w outbox.Message, g outbox.Record) bool { return len(differences(&w, &g.Message)) == 0 }) {
		return nil, true
	}
	// length[i][j]: how many of want[i:] and got[j:] can be lined up
	length := make([][]int, len(want)+1)
	for i := range length {
		length[i] = make([]int, len(got)+1)
	}
	for i := len(want) - 1; i >= 0; i-- {
		for j := len(got) - 1; j >= 0; j-- {
			if len(differences(&want[i], &got[j].Message)) == 0 {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(want) || j < len(got); {
		switch {
		case i < len(want) && j < len(got) && len(differences(&want[i], &got[j].Message)) == 0:
			lines = append(lines, "  "+describe(&got[j].Message))
			i, j = i+1, j+1
		case i < len(want) && j < len(got) && length[i][j] == length[i+1][j+1]: // neither has a better place
			lines = append(lines, "~ "+describe(&got[j].Message))
			for _, d := range differences(&want[i], &got[j].Message) {
				lines = append(lines, "    "+d)
			}
			i, j = i+1, j+1
		case i < len(want) && (j == len(got) || length[i+1][j] >= length[i][j+1]):
			lines = append(lines, "- "+describe(&want[i])+"   (was not written)")
			i++
		default:
			lines = append(lines, "+ "+describe(&got[j].Message)+"   (was not wanted)")
			j++
		}
	}
	return lines, false
}

// differences names the fields that are not as wanted.
func differences(want, got *outbox.Message) (found []string) {
	w, g := reflect.ValueOf(want).Elem(), reflect.ValueOf(got).Elem()
	for i := range w.NumField() {
		name := w.Type().Field(i).Name
		if w.Field(i).IsZero() {
			continue
		}
		switch wanted := w.Field(i).Interface().(type) {
		case map[string]string:
			for _, header := range slices.Sorted(maps.Keys(wanted)) {
				if value, ok := got.Headers[header]; !ok || value != wanted[header] {
					found = append(found, difference("header "+header, fmt.Sprintf("%q", wanted[header]), headerText(value, ok)))
				}
			}
		case []byte:
			if !samePayload(wanted, got.Payload) {
				found = append(found, difference(name, short(wanted), short(got.Payload)))
			}
		case time.Time:
			if !wanted.Equal(got.AvailableAt) {
				found = append(found, difference(name, wanted.UTC().String(), got.AvailableAt.UTC().String()))
			}
		default:
			if have := g.Field(i).Interface(); wanted != have {
				found = append(found, difference(name, fmt.Sprintf("%q", fmt.Sprint(wanted)), fmt.Sprintf("%q", fmt.Sprint(have))))
			}
		}
	}
	return found
}

func difference(name, want, got string) string {
	return fmt.Sprintf("%s: wrote %s, want %s", name, got, want)
}

func headerText(value string, ok bool) string {
	if !ok {
		return "none"
	}
	return fmt.Sprintf("%q", value)
}

// samePayload compares JSON by what it says, numbers by their digits.
func samePayload(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, okA := parse(a)
	y, okB := parse(b)
	return okA && okB && reflect.DeepEqual(x, y)
}

func parse(text []byte) (value any, ok bool) {
	if !json.Valid(text) {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return value, d.Decode(&value) == nil
}

// short is a payload for people.
func short(payload []byte) string {
	const limit = 400
	text := "%s"
	if !utf8.Valid(payload) {
		text = "%q"
	}
	if len(payload) > limit {
		return fmt.Sprintf(text+"... (%d bytes)", payload[:limit], len(payload))
	}
	if len(payload) == 0 {
		return "nothing"
	}
	return fmt.Sprintf(text, payload)
}

// describe is a message in one line.
func describe(m *outbox.Message) string {
	words := []string{m.Type, "on " + m.Topic}
	if m.Type == "" {
		words[0] = "any type"
	}
	if m.Topic == "" {
		words[1] = "on any topic"
	}
	if m.Key != "" {
		words = append(words, fmt.Sprintf("key %q", m.Key))
	}
	if len(m.Payload) > 0 {
		words = append(words, short(m.Payload))
	}
	return strings.Join(words, "  ")
}

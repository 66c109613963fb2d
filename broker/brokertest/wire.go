package brokertest

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// carriesWire: what arrives beside the payload is exactly what docs/names.md, section 1, lists: each header of the raw
// format, the message's own, the broker's slots, and nothing else - no error text, attempt count, table or relay name.
func carriesWire(s *suite) {
	p := s.publisher()
	batch := s.wireBatch()
	s.accept(p, batch)
	arrived := map[string]Message{}
	for _, m := range s.readAll(p) {
		arrived[m.Value("onward-id")] = m
	}
	for _, e := range batch {
		m, ok := arrived[e.ID.String()]
		if !ok {
			s.Errorf("%s did not arrive", e.ID)
			continue
		}
		want := rawHeaders(e)
		if s.Slots != nil {
			want = append(want, s.Slots(e)...)
		}
		if got, want := s.sorted(m.Headers), s.sorted(want); !slices.Equal(got, want) {
			s.Errorf("headers of %s %q:\n got %q\nwant %q", e.Type, e.Topic, got, want)
		}
		if !bytes.Equal(m.Payload, e.Payload) {
			s.Errorf("payload of %s: got %d bytes, want %d", e.Type, len(m.Payload), len(e.Payload))
		}
	}
}

// wireBatch is one message of every shape. Fields that never go out are filled: a driver that sends them is caught.
func (s *suite) wireBatch() []broker.Envelope {
	bare := s.message("")
	bare.Record = &outbox.Record{
		Message: outbox.Message{ID: bare.ID, Topic: s.Topic, Type: "b", ContentType: outbox.DefaultContentType},
		Seq:     bare.Seq, CreatedAt: bare.CreatedAt,
	}
	full := s.message("order-1")
	full.CorrelationID, full.CausationID, full.KeySeq = "conversation 7", "cause-1", 42
	full.Scope, full.AggregateType, full.AggregateID, full.EventID = "tenant", "order", "1", "event-1"
	full.Partition, full.Attempt, full.Epoch, full.Lineage = 13, 7, 9_000_000_000, "12"
	full.Record.CreatedAt = time.Date(2026, 2, 28, 23, 59, 59, 999_999_000, time.FixedZone("east", 9*3600))
	full.Record.Headers = map[string]string{
		"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"tracestate":  "vendor=1,other=2", "baggage": "user=%C3%BC,x=1", "X-Case": "Kept", "empty": "",
		"inner": "two  blanks\tand a tab: colon; quote\"'\\", "a!#$%&'*+.^_|~-z": "name of every allowed kind",
	}
	text := s.message("ключ/日本 ünï=*.> key")
	text.Type, text.CorrelationID = "Tüp ✓ 🎉", "関連"
	text.Record.Headers = map[string]string{"utf8": "grüße 日本 🎉 é e\u0301 \u2028 \ufeff"}
	long := s.message(strings.Repeat("k", outbox.MaxKey))
	long.Type, long.ContentType = strings.Repeat("t", outbox.MaxType), strings.Repeat("c", outbox.MaxField)
	long.CorrelationID, long.CausationID = strings.Repeat("r", outbox.MaxField), strings.Repeat("s", outbox.MaxField)
	long.Record.Headers = largestHeaders()
	long.Seq, long.KeySeq, long.Epoch = 1<<63-1, 1<<63-1, 1<<63-1
	return []broker.Envelope{bare, full, text, long}
}

// largestHeaders are as many bytes as the outbox takes.
func largestHeaders() map[string]string {
	headers := map[string]string{}
	for n := range 64 {
		headers[fmt.Sprintf("h%02d", n)] = strings.Repeat(string(rune('a'+n%26)), outbox.MaxHeaders/64-3)
	}
	return headers
}

// rawHeaders is the table of docs/names.md, written down a second time.
func rawHeaders(e broker.Envelope) []Header {
	want := []Header{
		{"onward-id", e.ID.String()},
		{"onward-type", e.Type},
		{"onward-topic", e.Topic},
		{"content-type", e.ContentType},
		{"onward-time", e.CreatedAt.UTC().Format("2006-01-02T15:04:05.000000Z")},
		{"onward-seq", strconv.FormatInt(e.Seq, 10)},
		{"onward-epoch", strconv.FormatInt(e.Epoch, 10)},
		{"onward-lineage", e.Lineage},
	}
	for _, h := range []Header{{"onward-key", e.Key}, {"onward-correlation-id", e.CorrelationID}, {"onward-causation-id", e.CausationID}} {
		if h.Value != "" {
			want = append(want, h)
		}
	}
	if e.KeySeq != 0 {
		want = append(want, Header{"onward-key-seq", strconv.FormatInt(e.KeySeq, 10)})
	}
	for name, value := range maps.All(e.Record.Headers) {
		want = append(want, Header{name, value})
	}
	return want
}

func (s *suite) sorted(hs []Header) []Header {
	if s.AnyCase {
		hs = slices.Clone(hs)
		for i := range hs {
			hs[i].Name = strings.ToLower(hs[i].Name)
		}
	}
	return slices.SortedFunc(slices.Values(hs), func(a, b Header) int {
		return strings.Compare(a.Name+"\x00"+a.Value, b.Name+"\x00"+b.Value)
	})
}

// carriesPayloads: empty, every byte, random bytes, text that looks like a protocol, and large ones.
func carriesPayloads(s *suite) {
	p := s.publisher()
	random := rand.NewChaCha8([32]byte{1})
	bytesOf := func(n int) []byte {
		b := make([]byte, n)
		_, _ = random.Read(b)
		return b
	}
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	large := outbox.MaxPayload
	if limit := p.Capabilities().MaxBytes; limit > 0 {
		large = min(large, limit)
	}
	payloads := [][]byte{{}, {0}, every, []byte("\r\n"), []byte("a\r\n\r\nPUB x 1\r\n"), []byte("-ERR '\r\n"), []byte(`{"b":1,"a":1,"a":2}`), bytesOf(large)}
	for range 40 {
		payloads = append(payloads, bytesOf(rand.New(random).IntN(min(large, 5000)+1)))
	}
	var batch []broker.Envelope
	want := map[string][]byte{}
	for _, payload := range payloads {
		e := s.message("")
		e.Payload = payload
		batch, want[e.ID.String()] = append(batch, e), payload
	}
	s.accept(p, batch)
	ms := s.readAll(p)
	for _, m := range ms {
		if id := m.Value("onward-id"); !bytes.Equal(m.Payload, want[id]) {
			s.Errorf("a payload of %d bytes arrived as %d others", len(want[id]), len(m.Payload))
		}
	}
	if len(ms) != len(batch) {
		s.Errorf("%d messages arrived, want %d", len(ms), len(batch))
	}
}

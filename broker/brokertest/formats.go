package brokertest

import (
	"bytes"
	"slices"

	"github.com/onwardhq/onward/broker"
)

// carriesFormats: what the encoder of the format says arrives, byte for byte, in both formats of CloudEvents and with every
// field that a sink can list, and beside it the broker's slots and nothing else.
func carriesFormats(s *suite) {
	if s.OpenWire == nil {
		s.lacks("the harness opens no publisher with a format")
		return
	}
	raw := s.publisher()
	for _, c := range []broker.WireConfig{
		{Fields: []string{"scope", "aggregate_type", "aggregate_id", "event_id", "diagnosis"}},
		{Format: broker.FormatBinary, Source: "/brokertest"},
		{Format: broker.FormatBinary, Source: "/brokertest", Fields: []string{"scope", "diagnosis"}},
		{Format: broker.FormatStructured, Source: "/brokertest"},
	} {
		w, err := broker.NewWire(c, s.Style)
		if err != nil {
			s.Fatal(err)
		}
		p := s.opened(s.OpenWire(s.T, c))
		before := len(s.readAll(raw)) + 1 // and the message that ends the reading
		batch := s.wireBatch()
		for i := range batch {
			batch[i].Relay = "relay-1"
			s.accept(p, batch[i:i+1]) // one after the other: what arrived is known by its place
		}
		arrived := s.readAll(raw)[before:]
		if len(arrived) != len(batch) {
			s.Fatalf("%s: %d messages arrived, want %d", w.Format(), len(arrived), len(batch))
		}
		for i := range batch {
			s.compareParcel(w, &batch[i], arrived[i])
		}
	}
}

func (s *suite) compareParcel(w *broker.Wire, e *broker.Envelope, m Message) {
	var out broker.Outgoing
	if err := w.Encode(e, &out); err != nil {
		s.Fatal(err)
	}
	var want []Header
	for _, h := range out.Headers {
		want = append(want, Header{h.Name, h.Value})
	}
	if s.Slots != nil {
		want = append(want, s.Slots(*e)...)
	}
	if got, want := s.sorted(m.Headers), s.sorted(want); !slices.Equal(got, want) {
		s.Errorf("%s: headers of %s %q:\n got %q\nwant %q", w.Format(), e.Type, e.Topic, got, want)
	}
	if !bytes.Equal(m.Payload, out.Payload) {
		s.Errorf("%s: payload of %s: got %.200q, want %.200q", w.Format(), e.Type, m.Payload, out.Payload)
	}
}

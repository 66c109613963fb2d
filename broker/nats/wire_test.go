package nats

import (
	"errors"
	"strings"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// rawWire is that of a publisher whose sink says nothing of the format.
var rawWire, _ = broker.NewWire(broker.WireConfig{}, broker.StyleNATS)

// stored is a message of the stream.
func (b *bench) stored(seq uint64) *jetstream.RawStreamMsg {
	b.tb.Helper()
	s, err := b.js.Stream(b.context(), b.stream)
	if err != nil {
		b.tb.Fatal(err)
	}
	m, err := s.GetMsg(b.context(), seq)
	if err != nil {
		b.tb.Fatal(err)
	}
	return m
}

func TestTemplatesThatJetStreamHasNoUseForAreRefused(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]broker.WireConfig{
		"key_template and routing_key_template are for other brokers": {Key: "{{.Scope}}"},
		"routing_key_template are for other brokers":                  {RoutingKey: "x"},
		`topic_template "{{.Nope}}" names .Nope`:                      {Topic: "{{.Nope}}"},
		"source is missing":                                           {Format: broker.FormatBinary},
	} {
		err := Config{Stream: "S", Wire: c}.Validate()
		if !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
}

// The subject is what the template says; a message that it fails for is rejected, others go on, also of its key.
func TestSubjectFromATemplate(t *testing.T) {
	t.Parallel()
	for name, compare := range map[string]bool{"plain": false, "compare": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, commonURL(t), nil)
			p := b.publisher(Config{Compare: compare, Wire: broker.WireConfig{Topic: b.topic + ".{{.Headers.region}}"}})
			batch := messages(4, "elsewhere")
			for i, region := range []string{"eu", "", "us", "not one.."} {
				batch[i].Record.Headers = map[string]string{"region": region}
			}
			delete(batch[1].Record.Headers, "region")
			rs := publish(t, t.Context(), p, batch...)
			for i, s := range []situation{taken, templateFailed, taken, badSubject} {
				want(t, rs[i], s)
			}
			subjects := []string{b.topic + ".eu", b.topic + ".us"}
			if compare {
				for i, at := range []int{0, 2} {
					subjects[i], _ = subjectOf(subjects[i], &batch[at])
				}
			}
			for i, at := range []int{0, 2} {
				m := b.stored(uint64(i + 1))
				if m.Subject != subjects[i] || m.Header.Get(headerID) != batch[at].ID.String() || m.Header.Get("onward-topic") != "elsewhere" {
					t.Errorf("message %d stands under %s with %v, want %s", i, m.Subject, m.Header, subjects[i])
				}
			}
		})
	}
}

// Compare mode reads ids and numbers in the stream: it sends them beside a format that has none.
func TestCompareModeKnowsCloudEventsAgain(t *testing.T) {
	t.Parallel()
	for _, f := range []broker.Format{broker.FormatBinary, broker.FormatStructured} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, commonURL(t), noWindow)
			c := Config{Compare: true, Wire: broker.WireConfig{Format: f, Source: "/s"}}
			batch := messages(3, b.topic)
			for i := range batch {
				batch[i].Record.Key, batch[i].Seq = "k", int64(i+1)
			}
			for _, r := range publish(t, t.Context(), b.publisher(c), batch...) {
				want(t, r, taken)
			}
			for _, r := range publish(t, t.Context(), b.publisher(c), batch...) { // another one, that has to look
				want(t, r, found)
			}
			if m := b.stored(1); (m.Header.Get("ce-id") != "") != (f == broker.FormatBinary) || m.Header.Get(natsgo.MsgIdHdr) != batch[0].ID.String() {
				t.Errorf("the message has the headers %v", m.Header)
			}
		})
	}
}

func TestPublisherDescribesItsFormat(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), nil)
	p := b.publisher(Config{Compare: true, Wire: broker.WireConfig{Format: broker.FormatBinary, Source: "/s"}})
	if got, want := p.Describe(), "no_duplicates=compare format=cloudevents-binary source=/s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := b.publisher(Config{}).Describe(); got != "" {
		t.Errorf("the defaults are described as %q", got)
	}
}

package broker

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
)

var update = flag.Bool("update", false, "write the golden files")

// envelope has every field that a message can have.
func envelope() Envelope {
	return Envelope{
		Record: &outbox.Record{
			Message: outbox.Message{
				ID: outbox.ID{1, 2, 3, 4, 5, 6, 0x70, 8, 0x89, 10, 11, 12, 13, 14, 15, 16}, Topic: "orders.paid", Key: "order-ü",
				Type: "OrderPaid", ContentType: "application/json", Scope: "tenant", CorrelationID: "corr", CausationID: "cause",
				AggregateType: "order", AggregateID: "7", EventID: "event", Payload: []byte("{}"),
				Headers: map[string]string{"zone": "eu", "traceparent": "00-4b-00-01", "X-Empty": ""},
			},
			Partition: 5, Seq: 4711, KeySeq: 12,
			CreatedAt: time.Date(2026, 3, 1, 0, 30, 0, 1500, time.FixedZone("CET", 3600)),
		},
		Epoch: 9, Lineage: "2", Attempt: 6,
	}
}

func lines(e Envelope) string {
	var b strings.Builder
	for name, value := range e.Headers() {
		fmt.Fprintf(&b, "%s: %s\n", name, value)
	}
	return b.String()
}

// The golden file is docs/names.md, section 1, for a message that has everything. What is not in it does not go out:
// scope, aggregate, event, partition, attempt.
func TestHeadersOfTheRawFormat(t *testing.T) {
	t.Parallel()
	bare := Envelope{Record: &outbox.Record{Message: outbox.Message{Topic: "t", Type: "T"}, Seq: 1}}
	got := "-- everything --\n" + lines(envelope()) + "-- nothing but what is required --\n" + lines(bare)
	const file = "testdata/headers.golden"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("headers changed (go test -update writes %s):\n got\n%s\nwant\n%s", file, got, want)
	}
}

func TestHeadersStopWhenTheReaderDoes(t *testing.T) {
	t.Parallel()
	total := strings.Count(lines(envelope()), "\n")
	for stop := 1; stop <= total; stop++ {
		n := 0
		for range envelope().Headers() {
			if n++; n == stop {
				break
			}
		}
		if n != stop {
			t.Errorf("read %d headers, want %d", n, stop)
		}
	}
}

func TestOutcomeWords(t *testing.T) {
	t.Parallel()
	var words []string
	for o := range Uncertain + 2 {
		words = append(words, o.String())
	}
	const want = "unknown accepted duplicate retry unavailable throttled rejected uncertain unknown"
	if got := strings.Join(words, " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

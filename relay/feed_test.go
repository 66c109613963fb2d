package relay

import (
	"testing"

	"github.com/onwardhq/onward/broker"
)

type describing struct {
	broker.Publisher
	line string
}

func (d describing) Describe() string { return d.line }

// What only the publisher knows of a sink's settings is shown beside the relay's own.
func TestThePublishersOwnSettingsAreInTheLineOfTheSink(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{"": "record_positions=true", "no_duplicates=compare": "record_positions=true no_duplicates=compare"} {
		f := &feed{relay: &Relay{}, sink: &Sink{Publisher: describing{line: line}}}
		f.rules.Positions = true
		if got := f.describe(); got != want {
			t.Errorf("%q: the line is %q, want %q", line, got, want)
		}
	}
}

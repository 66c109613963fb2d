package discard_test

import (
	"strings"
	"testing"

	"github.com/onwardhq/onward/broker/discard"
	"github.com/onwardhq/onward/doctor"
)

func TestWhatIsDiscardedIsWorthNothing(t *testing.T) {
	t.Parallel()
	d, err := discard.NewPublisher().Examine(t.Context(), doctor.Question{})
	if err != nil || d.Verdict() != doctor.Note || !strings.HasPrefix(d.Worth, "nothing") {
		t.Errorf("got %+v, %v", d, err)
	}
}

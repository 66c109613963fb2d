package relay

import (
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay/core"
)

// silence says that a broker takes nothing although its check is good: one that does not answer what it is sent, as a server whose
// disk was full once, or that answers each message with the same trouble. It belongs to the machine's goroutine.
type silence struct {
	since time.Time // of the first such answer after a good one; zero: there is none
	said  time.Time
	last  broker.Result
}

// silentFor is how long a broker may take nothing before that is said. One lost answer is nothing to talk about.
const silentFor = 5 * time.Second

// noteAnswers notes what the broker has answered.
func (t *turn) noteAnswers(answers []core.Answer, now time.Time) {
	s := &t.silence
	for i := range answers {
		switch r := answers[i].Result; r.Outcome {
		case broker.Unavailable, broker.Uncertain:
			s.last = r
		default: // it is there; also where it refuses a message
			if !s.said.IsZero() {
				t.feed.log.Info("the broker takes messages again", "after", now.Sub(s.since).Round(time.Millisecond))
			}
			*s = silence{}
			return
		}
	}
	if s.since.IsZero() {
		s.since = now
	}
	if t.absent || now.Sub(s.since) < silentFor || now.Sub(s.said) < sayAgain {
		return
	}
	s.said = now
	args := []any{"for", now.Sub(s.since).Round(time.Second), "outcome", s.last.Outcome.String(), "code", string(s.last.Code), "error", s.last.Err}
	if hint := outbox.Hint(s.last.Err); hint != "" {
		args = append(args, "hint", hint)
	}
	t.feed.log.Warn("the broker can be reached and takes no message: they are tried again, and none pays for it", args...)
}

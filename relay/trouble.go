package relay

import (
	"log/slog"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// trouble says that the database does not do what it is asked: at once, again every ten seconds while it lasts, and when
// it is over. Whatever fails meanwhile is part of it, or an outage would fill the log. It belongs to one goroutine.
type trouble struct {
	log   *slog.Logger
	calls map[string]bool // that failed and were not answered since; none: there is no trouble
	since time.Time
	said  time.Time
	last  error
}

func newTrouble(log *slog.Logger) trouble { return trouble{log: log, calls: map[string]bool{}} }

const sayAgain = 10 * time.Second

// The call that loads a session again is answered once a turn has lived for a second: what voids a session at once may do
// so again and again.
const loadSession = "load"

// failed notes that a call failed, and says so if it is time to; text is for the first time.
func (t *trouble) failed(call, text string, err error, args ...any) {
	now := time.Now()
	t.last = err
	first := len(t.calls) == 0
	if t.calls[call] = true; !first && now.Sub(t.said) < sayAgain {
		return
	}
	if first {
		t.since = now
	} else {
		text = "still waiting for the database"
		args = append(args, "for", now.Sub(t.since).Round(time.Second))
	}
	t.said = now
	args = append(args, "error", err)
	if hint := outbox.Hint(err); hint != "" {
		args = append(args, "hint", hint)
	}
	t.log.Warn(text, args...)
}

// answered notes that a call succeeded; the last one that had failed ends the trouble.
func (t *trouble) answered(call string) {
	if !t.calls[call] {
		return
	}
	if delete(t.calls, call); len(t.calls) == 0 {
		t.log.Info("the database answers again", "after", time.Since(t.since).Round(time.Millisecond))
	}
}

// reloaded forgets which calls failed: a new turn may have no reason to repeat them. That it lives ends the trouble.
func (t *trouble) reloaded() {
	if len(t.calls) > 0 {
		clear(t.calls)
		t.calls[loadSession] = true
	}
}

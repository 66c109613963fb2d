package relay

import "github.com/onwardhq/onward/store"

// notePauses says what somebody holds back now, and what goes on.
func (t *turn) notePauses(pauses []store.Pause) {
	if len(pauses) == 0 && len(t.paused) == 0 {
		return
	}
	now := make(map[int64]bool, len(pauses))
	for _, p := range pauses {
		now[p.ID] = true
		if !t.paused[p.ID] {
			args := []any{"kind", string(p.Kind), "name", p.Name, "reason", p.Reason, "by", p.Actor}
			if p.ExpiresAt != nil {
				args = append(args, "until", p.ExpiresAt.UTC())
			}
			t.feed.log.Info("paused: what it holds waits", args...)
		}
	}
	for id := range t.paused {
		if !now[id] {
			t.feed.log.Info("a pause has ended: what it held goes on", "paused", len(now))
		}
	}
	t.paused = now
}

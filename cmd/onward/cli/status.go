package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/store"
)

func newStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show backlog, lag, parked and dead messages of each sink",
		Long: `Shows the outbox at a glance, a line for each sink:

  BACKLOG       messages not yet published, without parked ones; 100,000+ is where counting stops
  LAG           the age of the oldest of them
  PARKED        messages that left the fast path: they wait for a retry, for their time (scheduled),
                behind an earlier message of their key, or for the end of a pause
  BLOCKED KEYS  keys that wait: one of their messages is retried or paused, or is a dead letter that
                blocks; ` + "`onward keys list --blocked`" + ` has them
  PAUSED        what is held back: the sink, topics, keys; who and why is said below
  DEAD          messages that gave up, until somebody requeues or discards them
  PUBLISHED     messages, since the sink exists
  RATE          messages a second, of the last five minutes and the one at hand
  PARTITIONS    held by relays, of all
  LAST SETTLE   when a relay last wrote down how far it is

It reads little at any size of the outbox, and changes nothing.`,
		Example: `  onward status
  onward status -o json | jq '.sinks[] | {name, lag_ms}'`,
		Args: takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
				s, err := admin.Status(ctx)
				if err != nil {
					return err
				}
				a.say("%s, schema %d, %s, %s live", s.Database, s.Schema, plural(s.Partitions, "partition"), plural(s.RelaysLive, "relay"))
				if len(s.Sinks) == 0 && a.output == outTable {
					a.say("no sink yet: the first `onward relay` registers its own")
					return nil
				}
				view := viewStatus(&s)
				if err := a.emit(view, []any{view}, func() *table { return statusTable(&s) }); err != nil {
					return err
				}
				a.sayNext(&s)
				return nil
			})
		},
	}
}

// heldAWhile is when retention has waited for a sink for longer than a busy one lets it.
const heldAWhile = time.Minute

// sayNext says what a person who looks at this wants to do next.
func (a *app) sayNext(s *store.Status) {
	dead := int64(0)
	for _, k := range s.Sinks {
		dead += k.Dead
	}
	for i := range s.Sinks {
		a.sayPaused(&s.Sinks[i])
		if k := &s.Sinks[i]; differs(k) {
			a.say("warning: the relays of sink %s have different settings for it; `onward sinks show %s` shows them", k.Name, k.Name)
		}
	}
	a.sayLineage(s)
	if len(s.Unrouted) > 0 {
		var topics []string
		for _, t := range s.Unrouted {
			topics = append(topics, fmt.Sprintf("%s (%s)", t.Topic, count(t.Messages)))
		}
		a.say("warning: no sink takes these topics, of the newest %s: %s", plural(int(s.UnroutedOf), "message"), strings.Join(topics, ", "))
	}
	for i := range s.Sinks {
		if k := &s.Sinks[i]; k.RetentionHeld > heldAWhile {
			a.say("retention is held by sink %s: it has not passed messages that would have been removed %s ago", k.Name, span(k.RetentionHeld))
		}
	}
	if s.RelaysLive == 0 {
		a.say("no relay runs, so nothing is published: `onward relay` starts one")
	}
	if dead > 0 {
		a.say("`onward dead list` shows what gave up, and why")
	}
}

// sayLineage says for a day what happened to the server.
func (a *app) sayLineage(s *store.Status) {
	if r := s.Rebased; r != nil && s.Now.Sub(r.At) < 24*time.Hour {
		a.say("warning: %s ago this outbox was found to be a copy from another server, and its cursors were set anew: %s may come again (lineage %s, messages up to number %d are of that server): %s",
			span(s.Now.Sub(r.At)), plural(int(r.Again), "message"), s.Lineage, r.Floor, strings.Join(r.Found, "; "))
	}
	if !s.Reborn.IsZero() && s.Now.Sub(s.Reborn) < 24*time.Hour {
		a.say("warning: %s ago the database's server was found to have crashed or to have been promoted or restored: relays went on from the cursors that it has (lineage %s)",
			span(s.Now.Sub(s.Reborn)), s.Lineage)
	}
}

func statusTable(s *store.Status) *table {
	t := newTable("SINK", "BACKLOG", "LAG", "PARKED", "BLOCKED KEYS", "PAUSED", "DEAD", "PUBLISHED", "RATE", "PARTITIONS", "LAST SETTLE")
	for _, k := range s.Sinks {
		lag, settled, dead := "-", "-", number(atLeast(k.Dead, k.CountsAtLeast && k.Dead >= 100_000))
		if k.Lag > 0 {
			lag = span(k.Lag)
		}
		if !k.LastSettle.IsZero() {
			settled = span(s.Now.Sub(k.LastSettle)) + " ago"
		}
		if k.Dead > 0 {
			dead.style = red
		}
		paused := text(pausesText(k.Pauses))
		if len(k.Pauses) > 0 {
			paused.style = yellow
		}
		owned := number(fmt.Sprintf("%d/%d", k.PartitionsOwned, k.PartitionsOwned+k.PartitionsFree))
		if k.PartitionsFree > 0 {
			owned.style = yellow
		}
		t.add(text(k.Name), number(atLeast(k.Backlog, k.BacklogAtLeast)), number(lag), text(parkedText(&k)),
			number(count(k.BlockedKeys)), paused, dead, number(count(k.Published)), number(perSecond(k.Rate)), owned, text(settled))
	}
	return t
}

// parkedText writes "12 (2 retry, 10 behind)".
func parkedText(k *store.SinkStatus) string {
	var total int64
	var parts []string
	for _, reason := range []store.Reason{store.ReasonRetry, store.ReasonScheduled, store.ReasonBehind, store.ReasonPaused} {
		if n := k.Parked[reason]; n > 0 {
			total += n
			parts = append(parts, count(n)+" "+string(reason))
		}
	}
	if total == 0 {
		return "0"
	}
	return atLeast(total, k.CountsAtLeast && total >= 100_000) + " (" + strings.Join(parts, ", ") + ")"
}

// perSecond writes "1,234/s", and below ten with the digits that say something.
func perSecond(rate float64) string {
	switch {
	case rate >= 9.95:
		return count(int64(rate+0.5)) + "/s"
	case rate >= 0.095:
		return strconv.FormatFloat(rate, 'f', 1, 64) + "/s"
	case rate > 0:
		return strconv.FormatFloat(max(rate, 0.001), 'f', 3, 64) + "/s"
	}
	return "0/s"
}

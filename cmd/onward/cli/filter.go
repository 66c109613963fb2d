package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// filterFlags are the filters that select messages, the same for every command.
type filterFlags struct {
	sink, topic, typ, key, id, eventID, correlationID, scope string
	state, reason, code, since, until, after                 string
	attempts, limit                                          int
}

// names of the filters that a command offers.
var (
	messageFilters = []string{"sink", "topic", "type", "key", "id", "event-id", "correlation-id", "scope", "state", "reason", "code", "since", "until", "attempts"}
	deadFilters    = []string{"sink", "topic", "type", "key", "id", "event-id", "correlation-id", "scope", "code", "since", "until", "attempts"}
	actFilters     = []string{"sink", "topic", "type", "key", "event-id", "correlation-id", "scope", "code", "since", "until", "attempts"} // their arguments are ids
)

// register adds the flags named to a command.
func (f *filterFlags) register(c *cobra.Command, names []string, when string) {
	flags := c.Flags()
	for _, name := range names {
		switch name {
		case "sink":
			flags.StringVar(&f.sink, name, "", "of this `sink`")
		case "topic":
			flags.StringVar(&f.topic, name, "", "of this `topic`")
		case "type":
			flags.StringVar(&f.typ, name, "", "of this `type`")
		case "key":
			flags.StringVar(&f.key, name, "", "with this partition `key`")
		case "id":
			flags.StringVar(&f.id, name, "", "with this `id`")
		case "event-id":
			flags.StringVar(&f.eventID, name, "", "with this event `id`")
		case "correlation-id":
			flags.StringVar(&f.correlationID, name, "", "with this correlation `id`")
		case "scope":
			flags.StringVar(&f.scope, name, "", "of this tenant or environment (`scope`)")
		case "state":
			flags.StringVar(&f.state, name, "", "in this `state`: pending, parked, published, dead or discarded")
		case "reason":
			flags.StringVar(&f.reason, name, "", "parked for this `reason`: retry, scheduled, behind or paused")
		case "code":
			flags.StringVar(&f.code, name, "", "that failed last with this `code`, for example onward/rejected")
		case "since":
			flags.StringVar(&f.since, name, "", when+" since this `time`: 10m, 24h or 2d ago, a date, or RFC 3339")
		case "until":
			flags.StringVar(&f.until, name, "", when+" before this `time`")
		case "attempts":
			flags.IntVar(&f.attempts, name, 0, "that failed at least so `often`")
		}
	}
}

// registerPage adds the flags of a list.
func (f *filterFlags) registerPage(c *cobra.Command) {
	flags := c.Flags()
	flags.IntVar(&f.limit, "limit", 100, "at most so `many`, up to 10000")
	flags.StringVar(&f.after, "after", "", "go on where a list ended; it says `where`")
}

// filter makes the store's filter of the flags.
func (f *filterFlags) filter(c *cobra.Command, now time.Time) (store.Filter, error) {
	bad := func(err error) (store.Filter, error) {
		return store.Filter{}, &usageError{err: err, command: c.CommandPath()}
	}
	out := store.Filter{
		Sink: f.sink, Topic: f.topic, Type: f.typ, Key: f.key, EventID: f.eventID, CorrelationID: f.correlationID, Scope: f.scope,
		State: store.State(f.state), Reason: store.Reason(f.reason), Code: codeOf(f.code), Attempts: f.attempts, Limit: f.limit, After: f.after,
	}
	for _, name := range messageFilters { // an empty variable of a script must not mean "all"
		if flag := c.Flags().Lookup(name); flag != nil && flag.Changed && flag.Value.String() == "" {
			return bad(fmt.Errorf("--%s is empty: leave it out, or say which", name))
		}
	}
	if c.Flags().Lookup("limit") != nil && f.limit <= 0 {
		return bad(fmt.Errorf("--limit %d: is not at least 1", f.limit))
	}
	var err error
	if f.id != "" {
		if out.ID, err = outbox.ParseID(f.id); err != nil {
			return store.Filter{}, err
		}
	}
	if out.Since, err = parseTime(f.since, now); err != nil {
		return bad(fmt.Errorf("--since %w", err))
	}
	if out.Until, err = parseTime(f.until, now); err != nil {
		return bad(fmt.Errorf("--until %w", err))
	}
	return out, nil
}

// codeOf lets people leave out what all of our codes begin with.
func codeOf(s string) outbox.Code {
	if s != "" && !strings.Contains(s, "/") {
		s = "onward/" + s
	}
	return outbox.Code(s)
}

// momentLayouts are how people may write a time.
var momentLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly}

// parseTime reads a time, or how long ago it was.
func parseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(s); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	if days, ok := parseDays(s); ok {
		return now.AddDate(0, 0, -days), nil
	}
	for _, layout := range momentLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q: is no time: write 10m, 24h or 2d (ago), 2026-01-31, or 2026-01-31T15:04:05Z", s)
}

// parseDays reads a number of days, at most as many as a duration holds.
func parseDays(s string) (days int, ok bool) {
	digits, ok := strings.CutSuffix(s, "d")
	n, err := strconv.ParseUint(digits, 10, 32)
	return int(n), ok && err == nil && n <= uint64(math.MaxInt64/(24*time.Hour)) //nolint:gosec // 32 bits
}

// parseIDs reads the ids of a command line; each once.
func parseIDs(args []string) ([]outbox.ID, error) {
	var ids []outbox.ID
	seen := make(map[outbox.ID]bool)
	for _, arg := range args {
		id, err := outbox.ParseID(arg)
		if err != nil {
			return nil, err
		}
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids, nil
}

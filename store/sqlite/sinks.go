package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Register makes the sink where it is new, with its cursor, and otherwise notes what it takes.
func (s *Store) Register(ctx context.Context, k store.Sink) error {
	const op = "register sink"
	if k.Name == "" {
		return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: op, Detail: "the sink has no name"}
	}
	if err := checkSelection(op, k.Selection); err != nil {
		return err
	}
	return failed(op, s.writer.use(ctx, func(c *call) error {
		return c.write(func() error { return c.see(k) })
	}))
}

func checkSelection(op string, s outbox.Selection) error {
	if err := s.Validate(); err != nil {
		return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: op, Detail: "the sink's topics", Err: err}
	}
	return nil
}

// see writes what is known of a sink, and its cursor where it has none.
func (c *call) see(k store.Sink) error {
	if _, err := c.exec("sink", k.Name, patternsText(k.Topics), patternsText(k.Exclude), k.Start.Latest, orNull(k.Start.Since)); err != nil {
		return err
	}
	_, err := c.exec("partition", k.Name)
	return err
}

func patternsText(patterns []outbox.Pattern) string {
	text, err := json.Marshal(append([]outbox.Pattern{}, patterns...))
	if err != nil {
		panic(err) // texts: nothing that JSON cannot say
	}
	return string(text)
}

// selectionOf reads what a sink takes, as see wrote it.
func selectionOf(topics, exclude string) (s outbox.Selection, err error) {
	if topics != "[]" {
		err = json.Unmarshal([]byte(topics), &s.Topics)
	}
	if err == nil && exclude != "[]" {
		err = json.Unmarshal([]byte(exclude), &s.Exclude)
	}
	return s, err
}

// selection reads what a sink takes.
func (c *call) selection(sink string) (outbox.Selection, error) {
	var topics, exclude string
	if _, err := c.row("selection", []any{sink}, &topics, &exclude); err != nil {
		return outbox.Selection{}, err
	}
	return selectionOf(topics, exclude)
}

// RemoveSink forgets a sink, its cursor, and its parked and dead messages; the log is left alone. A relay that still
// believes in it is fenced.
func (a *Admin) RemoveSink(ctx context.Context, act store.Act) error {
	return a.acts(ctx, "remove sink", "remove sink "+act.Sink, act, true, func(c *call) (string, map[string]any, error) {
		var server string
		if found, err := c.row("server", []any{act.Sink}, &server); err != nil || found {
			if err == nil {
				err = &outbox.Error{
					Code: store.ErrStateConflict.Code, Detail: "relay " + server + " serves sink " + act.Sink,
					Hint: "stop the relays that serve it, or take the sink out of their configuration",
				}
			}
			return "", nil, err
		}
		removed := map[string]any{}
		for _, name := range []string{"unserve", "forget_partitions", "forget_parked", "forget_dead", "forget_attempts", "forget_positions", "forget_minutes", "forget_pauses", "forget_sink"} {
			n, err := c.exec(name, act.Sink)
			if err != nil {
				return "", nil, err
			}
			switch name {
			case "forget_parked":
				removed["parked"] = n
			case "forget_dead":
				removed["dead"] = n
			}
		}
		return "", removed, nil
	})
}

// unrouted counts the topics of recent messages that no sink takes.
func (c *call) unrouted(status *store.Status) error {
	var all []outbox.Selection
	err := c.query("selections", nil, func(rows *sql.Rows) (bool, error) {
		var topics, exclude string
		if err := rows.Scan(&topics, &exclude); err != nil {
			return false, err
		}
		s, err := selectionOf(topics, exclude)
		all = append(all, s)
		return false, err
	})
	if err != nil || len(all) == 0 {
		return err
	}
	for _, s := range all {
		if s.All() {
			return nil
		}
	}
	err = c.query("recent", nil, func(rows *sql.Rows) (bool, error) {
		var t store.TopicCount
		if err := rows.Scan(&t.Topic, &t.Messages); err != nil {
			return false, err
		}
		status.UnroutedOf += t.Messages
		for _, s := range all {
			if s.Match(t.Topic) {
				return false, nil
			}
		}
		status.Unrouted = append(status.Unrouted, t)
		return false, nil
	})
	slices.SortFunc(status.Unrouted, func(a, b store.TopicCount) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.Topic, b.Topic))
	})
	status.Unrouted = status.Unrouted[:min(len(status.Unrouted), 10)]
	return err
}

// stands reports whether another sink of the relay has not turned for a lease: others must take over, so nothing is renewed.
func (s *Store) stands(me *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other := range s.sessions {
		if other == me || other.relay.ID != me.relay.ID {
			continue
		}
		other.mu.Lock()
		stands := time.Since(other.turned) > me.relay.Lease
		other.mu.Unlock()
		if stands {
			return true
		}
	}
	return false
}

package postgres

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Register makes the sink where it is new, with a cursor for each partition, and otherwise notes what it takes.
func (s *Store) Register(ctx context.Context, sink store.Sink) error {
	if err := s.incarnate(ctx, ""); err != nil {
		return fmt.Errorf("register sink: %w", err)
	}
	err := s.trip(ctx, "", func(b *pgx.Batch) { queueSink(b, s, sink) }, sinkQueued)
	if err != nil {
		return fmt.Errorf("register sink: %w", err)
	}
	return nil
}

// queueSink queues the registration of a sink; sinkQueued takes the answers.
func queueSink(b *pgx.Batch, s *Store, sink store.Sink) {
	b.Queue(s.text("lock_sinks"))
	var since *time.Time
	if !sink.Start.Since.IsZero() {
		since = &sink.Start.Since
	}
	b.Queue(s.text("sink"), sink.Name, texts(sink.Topics), texts(sink.Exclude), expression(sink.Topics), expression(sink.Exclude),
		sink.Start.Latest, since)
}

func sinkQueued(r pgx.BatchResults) error {
	for range 2 {
		if _, err := r.Exec(); err != nil {
			return err
		}
	}
	return nil
}

func texts(patterns []outbox.Pattern) []string {
	all := make([]string, len(patterns))
	for i, p := range patterns {
		all[i] = string(p)
	}
	return all
}

// expression is a regular expression that matches what any of the patterns selects; empty where they select everything, or
// there are none.
func expression(patterns []outbox.Pattern) string {
	var all []string
	for _, p := range patterns {
		words := strings.Split(string(p), ".")
		for i, w := range words {
			switch w {
			case "*":
				words[i] = "[^.]+"
			case ">":
				words[i] = ".+"
			default:
				words[i] = regexp.QuoteMeta(w)
			}
		}
		all = append(all, strings.Join(words, `\.`))
	}
	if len(all) == 0 {
		return ""
	}
	return "^(" + strings.Join(all, "|") + ")$"
}

// RemoveSink forgets a sink, by the SQL function of that name, which has the rules.
func (a *Admin) RemoveSink(ctx context.Context, act store.Act) error {
	return a.act(ctx, "remove sink "+act.Sink, act.DryRun, a.sql["remove_sink"], act.Sink, act.Reason, act.Actor)
}

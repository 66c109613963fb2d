package postgres

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
)

// Status returns the outbox at a glance. It is cheap at any size: a backlog is counted up to 100,000, parked and dead
// messages up to 100,000 of a kind, and the answer says where counting stopped.
func (a *Admin) Status(ctx context.Context) (s store.Status, err error) {
	err = a.read(ctx, "read status", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, a.sql["status"], "")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := scanStatus(rows, &s); err != nil {
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		pauses, err := a.pauses(ctx, tx, "")
		if err != nil {
			return err
		}
		for i := range s.Sinks {
			s.Sinks[i].Pauses = store.OfSink(pauses, s.Sinks[i].Name)
		}
		if err := a.addUnrouted(ctx, tx, &s); err != nil {
			return err
		}
		return a.addRetention(ctx, tx, &s)
	})
	return s, err
}

// addRetention fills in what retention waits for.
func (a *Admin) addRetention(ctx context.Context, tx pgx.Tx, s *store.Status) error {
	rows, err := tx.Query(ctx, a.sql["retention"], "")
	if err != nil {
		return err
	}
	var sink string
	var us int64
	_, err = pgx.ForEachRow(rows, []any{&sink, &us}, func() error {
		for i := range s.Sinks {
			if s.Sinks[i].Name == sink {
				s.Sinks[i].RetentionHeld = max(time.Duration(us)*time.Microsecond, 0)
			}
		}
		return nil
	})
	return err
}

func (a *Admin) addUnrouted(ctx context.Context, tx pgx.Tx, s *store.Status) error {
	rows, err := tx.Query(ctx, a.sql["unrouted"])
	if err != nil {
		return err
	}
	var t store.TopicCount
	var part int
	_, err = pgx.ForEachRow(rows, []any{&t.Topic, &t.Messages, &part}, func() error {
		if part == 0 {
			s.UnroutedOf = t.Messages
		} else {
			s.Unrouted = append(s.Unrouted, t)
		}
		return nil
	})
	return err
}

// scanStatus reads one row: the outbox, and one sink if there is any.
func scanStatus(row pgx.Row, s *store.Status) error {
	var (
		version, schema, partitions string
		name                        *string
		sink                        store.SinkStatus
		oldest, settled             nullTime
		retry, scheduled, behind    int64
		paused                      int64
		created, seen               nullTime
		serving                     []byte
		reborn                      nullTime
		rebased                     string
	)
	err := row.Scan(&version, &schema, &partitions, &s.Lineage, &reborn, &rebased, &s.Now, &s.RelaysLive,
		&name, &sink.Backlog, &sink.BacklogAtLeast, &oldest, &retry, &scheduled, &behind, &paused, &sink.BlockedKeys, &sink.Dead,
		&sink.CountsAtLeast, &sink.Published, &sink.Rate, &sink.PartitionsOwned, &sink.PartitionsFree, &settled,
		&sink.Topics, &sink.Exclude, &created, &seen, &serving)
	if err != nil {
		return err
	}
	s.Database = shortVersion(version)
	s.Schema, _ = strconv.Atoi(schema) // 0 where the table does not say
	s.Partitions, _ = strconv.Atoi(partitions)
	s.Reborn = reborn.Time
	if rebased != "" {
		if err := json.Unmarshal([]byte(rebased), &s.Rebased); err != nil {
			return err
		}
	}
	if name == nil {
		return nil
	}
	sink.Name, sink.LastSettle, sink.CreatedAt, sink.SeenAt = *name, settled.Time, created.Time, seen.Time
	if err := json.Unmarshal(serving, &sink.Serving); err != nil {
		return err
	}
	if !oldest.IsZero() {
		sink.Lag = max(s.Now.Sub(oldest.Time), 0)
	}
	sink.Parked = make(map[store.Reason]int64)
	for reason, n := range map[store.Reason]int64{store.ReasonRetry: retry, store.ReasonScheduled: scheduled, store.ReasonBehind: behind, store.ReasonPaused: paused} {
		if n > 0 {
			sink.Parked[reason] = n
		}
	}
	s.Sinks = append(s.Sinks, sink)
	return nil
}

// shortVersion makes "PostgreSQL 15.4" of what version() returns.
func shortVersion(full string) string {
	words := strings.Fields(full)
	return strings.Join(words[:min(2, len(words))], " ")
}

// nullTime is a time that may be NULL: then it is zero.
type nullTime struct{ time.Time }

// Scan takes a time or NULL.
func (t *nullTime) Scan(src any) error {
	t.Time, _ = src.(time.Time)
	return nil
}

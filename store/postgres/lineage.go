package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// What a server may have lost or never had: a token marks each of its lives, and rows that were copied from another server
// have numbers that mean nothing here (docs/failover.md).

// rebase is what outbox_rebase found and did.
type rebase struct {
	At      time.Time        `json:"at"`
	Found   []string         `json:"found"`
	Again   int64            `json:"again"`
	Sinks   map[string]int64 `json:"sinks"`
	Floor   int64            `json:"floor"`
	Lineage string           `json:"lineage"`
}

// rebaseSettings bound how long a rebase lets writers wait behind transactions that do not end.
const rebaseSettings = `SET LOCAL lock_timeout = '2s'`

// incarnate puts a token in where this life of the server has none, and sets the cursors anew where the rows are of another
// server's numbering. Nothing is read before it has succeeded.
func (s *Store) incarnate(ctx context.Context, relay string) error {
	var fresh, lineage bool
	var token, text *string
	err := s.trip(ctx, "", func(b *pgx.Batch) {
		b.Queue(rebaseSettings)
		b.Queue(s.text("incarnate"))
		b.Queue(s.text("rebase"), relay)
	}, func(r pgx.BatchResults) error {
		if _, err := r.Exec(); err != nil {
			return err
		}
		if err := r.QueryRow().Scan(&fresh, &lineage); err != nil {
			return err
		}
		return r.QueryRow().Scan(&token, &text)
	})
	if waits := (*pgconn.PgError)(nil); errors.As(err, &waits) && waits.Code == "55P03" { // lock_not_available
		return &outbox.Error{
			Code: store.ErrLineageChanged.Code, Op: "rebase", Err: err,
			Detail: "the log was copied from another server, and transactions that write to it do not end",
			Hint:   "nothing is published until they end: see pg_stat_activity, and pg_prepared_xacts for prepared ones",
		}
	}
	if err != nil {
		return fmt.Errorf("check the server's incarnation: %w", err)
	}
	if text != nil {
		if err := s.logRebase(*text); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if token != nil {
		s.vouched = *token
	}
	s.reborn = s.reborn || lineage && text == nil
	return nil
}

// sayLineage says that the server has had another life: where the token was made here, and where the lineage is another one than
// before. Whoever made the token may not have heard of it: the answer may be lost.
func (s *Store) sayLineage(now string) {
	s.mu.Lock()
	says := s.reborn || s.lineage != "" && s.lineage != now
	s.reborn, s.lineage = false, now
	s.mu.Unlock()
	if says {
		s.log.Warn("the server has crashed or was promoted or restored since relays last read: cursors are read again from the database", "lineage", now)
	}
}

func (s *Store) logRebase(text string) error {
	var r rebase
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return fmt.Errorf("read what the rebase found: %w", err)
	}
	s.log.Error("this outbox was copied from another server: its cursors are set anew, and messages may come again",
		"found", strings.Join(r.Found, "; "), "again_at_most", r.Again, "of_sinks", r.Sinks, "lineage", r.Lineage, "floor", r.Floor)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lineage = r.Lineage // said
	return nil
}

// vouches reports whether somebody has looked, under this token, whose numbers the rows have.
func (s *Store) vouches(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vouched == token
}

// doubt lets the next load look again.
func (s *Store) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vouched = ""
}

// errLineage: the sequence stands below what was read before, so the rows are of another numbering.
func errLineage(top, seq int64) error {
	return errVoid("read", fmt.Sprintf("the outbox's sequence went back: it stands at %d and was read up to %d", top, seq), store.ErrLineageChanged)
}

// tokenAndWAL takes apart what a read says of the server.
func tokenAndWAL(text string) (token string, wal int64) {
	token, at, _ := strings.Cut(text, " ")
	wal, _ = strconv.ParseInt(at, 10, 64) // the server wrote it
	return token, wal
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/failpoint"
)

// Settle writes outcomes back in one statement: how far the relay has got, what is parked, dead or positioned. Where a key
// may get another head, two more in the same round trip see to it that it has one.
//
// Errors: ErrReload when its fate is unknown or another owner came first, ErrFenced after the session has ended; with any
// other error nothing of it was done.
func (s *Session) Settle(ctx context.Context, m store.Settlement) (store.Settled, error) {
	return s.settle(ctx, "settle", m, nil)
}

func (s *Session) settle(ctx context.Context, op string, m store.Settlement, gone []int) (store.Settled, error) {
	s.settling.Lock()
	defer s.settling.Unlock()
	if err := s.usable(op); err != nil {
		return store.Settled{}, err
	}
	s.mu.Lock()
	l := s.ledger
	p := l.settle(m.Done, gone)
	w := s.write(p, m)
	s.mu.Unlock()
	failpoint.Hit("postgres.settle.before")
	if err := w.send(ctx, s); err != nil {
		return store.Settled{}, s.settleFailed(op, l, err)
	}
	failpoint.Hit("postgres.settle.committed")
	if len(gone) > 0 {
		failpoint.Hit("postgres.giveback.committed")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.no < 0 {
		return store.Settled{}, s.spoil(errVoid(op, "another relay has taken over, or the server's incarnation has changed", nil))
	}
	if w.own != int64(len(p.own)) {
		return store.Settled{}, s.spoil(errVoid(op, "the database says that other partitions are owned than are known here", nil))
	}
	l.commit(p)
	s.no, s.count = w.no, s.count+int64(m.Published)
	s.written, s.settled = p.pos, time.Now()
	return store.Settled{Gone: w.verdicts.asked - int(w.matched)}, nil
}

// settleFailed tells a statement that the server refused, which may be repeated as it is, from one whose fate is unknown.
func (s *Session) settleFailed(op string, l *ledger, err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.Severity != "ERROR" || e.Code[:2] == "40" || e.Code[:2] == "08" || e.Code[:2] == "57" {
		return s.fail(op, "its fate is unknown", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.abort()
	return fmt.Errorf("%s: %w", op, err)
}

// outcome is a settle on its way.
type outcome struct {
	args     []any
	verdicts verdicts
	no, own  int64
	matched  int64 // verdicts on parked messages that were there
}

// write puts a plan into the arguments of the statement.
func (s *Session) write(p *plan, m store.Settlement) *outcome {
	parts := make([]int32, len(p.members))
	for i, slot := range p.members {
		parts[i] = int32(slot.part) //nolint:gosec // at most 16,384
	}
	var (
		own         []int32
		snaps, late []string
		seqs, lates []int64
		gone        []bool
	)
	for _, o := range p.own {
		own, seqs, gone = append(own, int32(o.slot.part)), append(seqs, o.seq), append(gone, o.gone) //nolint:gosec // at most 16,384
		snaps, late, lates = append(snaps, o.snapshot), append(late, o.late), append(lates, o.lateSeq)
	}
	return &outcome{
		args: []any{
			s.sink, s.member.ID.String(), s.no, s.token, p.pos.snapshot, p.pos.late, p.pos.lateSeq, parts, p.seqs,
			s.count + int64(m.Published), own, snaps, seqs, late, lates, gone,
		},
		verdicts: sortVerdicts(m.Verdicts),
	}
}

func (w *outcome) send(ctx context.Context, s *Session) error {
	if w.verdicts.none() {
		return s.trip(ctx, true, "settle", w.args, one(&w.no, &w.own))
	}
	return s.store.trip(ctx, s.member.application, func(b *pgx.Batch) {
		if len(w.verdicts.keys) > 0 {
			b.Queue(s.sql["lock_lines"], s.sink, w.verdicts.keyPartitions)
		}
		b.Queue(s.sql["settle_verdicts"], append(w.args, w.verdicts.args(s.member.Name)...)...)
		if len(w.verdicts.keys) > 0 {
			b.Queue(s.sql["promote"], s.sink, w.verdicts.keyPartitions, w.verdicts.keys, s.member.ID.String())
		}
	}, func(r pgx.BatchResults) error {
		failpoint.Hit("postgres.park.sent")
		if len(w.verdicts.keys) > 0 {
			if _, err := r.Exec(); err != nil {
				return err
			}
		}
		if err := r.QueryRow().Scan(&w.no, &w.own, &w.matched); err != nil || len(w.verdicts.keys) == 0 {
			return err
		}
		_, err := r.Exec()
		return err
	})
}

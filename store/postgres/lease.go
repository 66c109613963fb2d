package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/failpoint"
)

const (
	// cursorAge is when the snapshot in the cursor row is renewed though nothing was settled: an old one makes the first
	// read after a restart a scan of everything since.
	cursorAge = 30 * time.Second
	// expiryEvery is how often, at most, the end of a foreign lease alone makes a relay look for expired ones.
	expiryEvery = time.Second
)

// Renew renews the lease when a heartbeat is due, takes over what expired, compares what the database says is held with
// what is in memory, and claims up to the fair share where take is set. A session that was reset is loaded again first.
func (s *Session) Renew(ctx context.Context, take bool) (store.Lease, error) {
	const op = "renew"
	if err := s.usable(op); errors.Is(err, store.ErrFenced) {
		return store.Lease{}, err
	}
	s.mu.Lock()
	s.turned = time.Now()
	s.mu.Unlock()
	if err := s.revive(ctx, op); err != nil {
		return store.Lease{}, err
	}
	beat, err := s.heartbeat(ctx, op)
	if err != nil {
		return store.Lease{}, err
	}
	if beat || s.foreignOver() {
		if err := s.takeOverExpired(ctx); err != nil {
			return store.Lease{}, s.fail(op, "relays whose lease is over were not taken over", err)
		}
	}
	seen, err := s.compare(ctx, op)
	if err != nil {
		return store.Lease{}, err
	}
	lease := store.Lease{Relays: seen.relays, Recheck: s.recheck(), Unattended: seen.unattended}
	if seen.target != nil {
		if missing := *seen.target - len(seen.mine); take && missing > 0 && seen.free > 0 {
			if err := s.claim(ctx, op, missing); err != nil {
				return store.Lease{}, err
			}
		}
		lease.Surplus = max(0, len(seen.mine)-*seen.target)
	}
	if err := s.refresh(ctx); err != nil {
		return store.Lease{}, err
	}
	s.mu.Lock()
	lease.Owned, lease.Lineage, lease.Until = s.ledger.owned(), s.lineage, s.member.leased(s.token)
	lease.Unattended = max(0, lease.Unattended-(len(lease.Owned)-len(seen.mine))) // what was claimed since
	s.mu.Unlock()
	return lease, nil
}

// revive loads a session again whose caller has dropped what it held.
func (s *Session) revive(ctx context.Context, op string) error {
	err := s.usable(op)
	s.mu.Lock()
	dropped := s.dropped
	s.mu.Unlock()
	if err == nil || !dropped {
		return err
	}
	err = s.reload(ctx)
	switch {
	case errors.Is(err, errNoRow):
		s.end()
		return errFenced(op)
	case err != nil:
		return s.fail(op, "the session could not be loaded again", err)
	}
	return nil
}

// heartbeat renews the lease where that is due.
func (s *Session) heartbeat(ctx context.Context, op string) (sent bool, err error) {
	token := s.tokenNow()
	if s.store.stands(s.member) || !s.member.beat(token) {
		return false, nil
	}
	defer s.member.beaten()
	now := time.Now()
	var renewed, registered bool
	err = s.trip(ctx, false, "heartbeat", []any{s.member.ID.String(), token}, one(&renewed, &registered))
	switch {
	case err != nil:
		return false, s.fail(op, "the lease was not renewed", err)
	case !registered:
		s.end()
		return false, errFenced(op)
	case !renewed:
		return false, s.fail(op, "the server's incarnation has changed", nil)
	}
	s.member.renewed(token, now)
	return true, nil
}

// stands reports whether a sink of the relay has not turned for a lease: others must take over, so nothing is renewed.
func (s *Store) stands(m *member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other := range s.sessions {
		if other.member != m {
			continue
		}
		other.mu.Lock()
		stands := !other.turned.IsZero() && time.Since(other.turned) > m.Lease
		other.mu.Unlock()
		if stands {
			return true
		}
	}
	return false
}

func (s *Session) tokenNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

// foreignOver: the earliest foreign lease seems to be over, and nobody looked just now.
func (s *Session) foreignOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	return !s.foreign.IsZero() && now.After(s.foreign) && now.Sub(s.checked) >= expiryEvery
}

// recheck is when the earliest foreign lease may have run out.
func (s *Session) recheck() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.foreign.IsZero() {
		return 0
	}
	return max(time.Until(s.foreign), expiryEvery-time.Since(s.checked), time.Millisecond)
}

func (s *Session) takeOverExpired(ctx context.Context) error {
	type relay struct{ id, name string }
	var victims []relay
	err := s.ask(ctx, "expired", []any{s.member.ID.String()}, func(rows pgx.Rows) (err error) {
		victims, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r relay, err error) {
			err = row.Scan(&r.id, &r.name)
			return r, err
		})
		return err
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.checked = time.Now()
	s.mu.Unlock()
	for _, v := range victims {
		if err := s.store.takeOver(ctx, v.id, takeExpired); err != nil {
			return fmt.Errorf("take over relay %s: %w", v.name, err)
		}
	}
	return nil
}

// compare looks, and compares what the database says is mine with memory: a partition that came without our knowing (a claim whose
// answer was lost) makes the session void.
func (s *Session) compare(ctx context.Context, op string) (view, error) {
	v, err := s.look(ctx)
	if err != nil {
		return v, s.fail(op, "what is owned could not be read", err)
	}
	slices.Sort(v.mine)
	s.mu.Lock()
	s.foreign = v.foreign
	known := len(v.mine) == len(s.ledger.slots)
	for _, part := range v.mine {
		known = known && s.ledger.slots[int(part)] != nil
	}
	s.mu.Unlock()
	if !known {
		return v, s.fail(op, "the database says that other partitions are owned than are known here", nil)
	}
	return v, nil
}

// claim takes free partitions with their cursors, between two settles: each gives the cursor row another number.
func (s *Session) claim(ctx context.Context, op string, n int) error {
	s.settling.Lock()
	defer s.settling.Unlock()
	failpoint.Hit("postgres.claim.before")
	var got []holding
	err := s.trip(ctx, true, "claim", s.claiming(n), func(rows pgx.Rows) error {
		for rows.Next() {
			var h holding
			c := &h.cursor
			if err := rows.Scan(&h.part, &h.epoch, &c.snapshot, &c.seq, &c.late, &c.lateSeq); err != nil {
				return err
			}
			got = append(got, h)
		}
		return rows.Err()
	})
	if err != nil {
		return s.fail(op, "a claim's fate is unknown", err)
	}
	failpoint.Hit("postgres.claim.committed")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.add(got)
	return nil
}

// claiming are the arguments of a claim of n partitions.
func (s *Session) claiming(n int) []any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []any{s.sink, s.member.ID.String(), n, s.token, s.no}
}

// refresh settles how far the reads are where nothing was settled for long: a sink may have passed over all that they saw.
func (s *Session) refresh(ctx context.Context) error {
	s.mu.Lock()
	due := time.Since(s.settled) >= cursorAge && s.ledger.unwritten(s.written)
	s.mu.Unlock()
	if !due {
		return nil
	}
	_, err := s.settle(ctx, "settle", store.Settlement{}, nil)
	if errors.Is(err, store.ErrReload) || errors.Is(err, store.ErrFenced) {
		return err
	}
	return nil // nothing was done: the next settle writes it
}

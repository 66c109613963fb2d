package sqlite

import (
	"context"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/sqlite/internal/failpoint"
)

// Renew beats when a heartbeat is due, takes over what expired, claims the partition where it is free, and says what is
// held. It writes only where there is something to write, so that a relay that stands by writes once a heartbeat.
//
// The relay that holds the partition keeps it while it is alive: with one partition there is nothing to share, and a
// newcomer is no reason to move it.
func (s *Session) Renew(ctx context.Context, take bool) (lease store.Lease, err error) {
	const op = "renew"
	if err := s.usable(op, s.wasReset()); err != nil {
		return lease, err
	}
	before := time.Now() // Until must not be later than the database has it
	s.mu.Lock()
	s.turned = before
	s.mu.Unlock()
	stands := s.store.stands(s)
	err = s.store.writer.use(ctx, func(c *call) error {
		v, err := s.look(c)
		if err == nil {
			err = s.check(v)
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		reload, beat := s.void, before.Sub(s.beaten) >= s.relay.Heartbeat || v.leasedUntil <= v.now
		beat = beat && !stands
		s.mu.Unlock()
		if claim := take && !v.owned; beat || claim || v.expired {
			if v, err = s.renewed(c, before, beat, take); err != nil {
				return err
			}
		}
		s.mu.Lock()
		gained := v.held && s.epoch != v.epoch
		s.mu.Unlock()
		if reload || gained {
			if err := s.forget(v); err != nil {
				return err
			}
		}
		lease = s.lease(v)
		return nil
	})
	return lease, s.failed(op, err)
}

// renewed writes what is due.
func (s *Session) renewed(c *call, before time.Time, beat, take bool) (v view, err error) {
	id := s.relay.ID.String()
	err = c.write(func() error {
		if v, err = s.look(c); err != nil {
			return err
		}
		if err := s.check(v); err != nil {
			return err
		}
		if v.expired {
			if err := s.takeOverExpired(c); err != nil {
				return err
			}
		}
		if beat {
			if _, err := c.exec("beat", id); err != nil {
				return err
			}
			if err := s.pass(c); err != nil {
				return err
			}
		}
		if take {
			if _, err := c.row("claim", []any{id, s.sink}, &v.epoch, &v.no, &v.seq); err != nil {
				return err
			}
			failpoint.Hit("sqlite.claim.written")
		}
		v, err = s.look(c)
		return err
	})
	if err == nil && beat {
		s.mu.Lock()
		s.beaten = before
		s.mu.Unlock()
	}
	return v, err
}

// takeOverExpired removes every other relay whose lease is over.
func (s *Session) takeOverExpired(c *call) error {
	id := s.relay.ID.String()
	freed, err := c.exec("free_expired", id)
	if err != nil {
		return err
	}
	failpoint.Hit("sqlite.takeover.freed")
	removed, err := c.exec("remove_expired", id)
	if err == nil {
		s.store.log.InfoContext(c.ctx, "took over relays whose lease has ended", "relays", removed, "sinks", freed)
	}
	return err
}

// lease is what the caller is told.
func (s *Session) lease(v view) store.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := store.Lease{Until: s.beaten.Add(s.relay.Lease), Relays: v.relays}
	if !v.held && !v.attended {
		l.Unattended = 1
	}
	if v.held {
		l.Owned = []store.Owned{{Partition: 0, Epoch: v.epoch}}
	}
	if v.othersUntil != 0 { // asking more often than once a second is not worth it
		left := time.Duration(v.othersUntil-v.now) * time.Microsecond
		l.Recheck = min(max(left, time.Microsecond), time.Second)
	}
	return l
}

// lineageChanged: the numbers that are given now lie below those that are settled.
func lineageChanged() error {
	return &outbox.Error{
		Code: store.ErrLineageChanged.Code, Detail: store.ErrLineageChanged.Detail,
		Hint: "was another file put in this one's place, or sqlite_sequence changed? restore the file as a whole (docs/sqlite.md)",
	}
}

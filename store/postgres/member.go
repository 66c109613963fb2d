package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// member is the registration of one relay: its row in outbox_relays, which all sessions of the relay share.
type member struct {
	store.Relay
	application string // names the server's sessions that hold locks for it

	mu      sync.Mutex
	sent    time.Time // of the last renewal that was answered
	until   time.Time
	token   string // of the server's life that this renewal was done in
	beating bool   // a session renews
	joint   int    // sessions
	glance  *glance
}

// Join registers the relay on the sink and makes the sink where it is new. Errors: *store.NameTaken while another live
// relay has the name; anything else is the database's own and may be tried again.
func (s *Store) Join(ctx context.Context, r store.Relay, sink store.Sink) (store.Session, error) {
	const op = "join"
	if err := s.incarnate(ctx, r.Name); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	m := s.member(r)
	sent := time.Now()
	if err := s.register(ctx, m, sink); err != nil {
		s.release(m)
		if errors.Is(err, store.ErrNameTaken) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	session := newSession(s, m, sink)
	if err := session.reload(ctx); err != nil {
		s.release(m)
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	m.renewed(session.token, sent)
	s.mu.Lock()
	s.sessions[session] = true
	s.mu.Unlock()
	return session, nil
}

func (s *Store) member(r store.Relay) *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[r.ID]
	if m == nil {
		m = &member{Relay: r, application: "onward/" + r.ID.String()}
		s.members[r.ID] = m
	}
	m.joint++
	return m
}

// release forgets a registration that no session needs any more, and says whether that was so.
func (s *Store) release(m *member) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.joint--
	if m.joint == 0 {
		delete(s.members, m.ID)
	}
	return m.joint == 0
}

// register makes the sink and the relay's row, and takes over an expired relay of the same name.
func (s *Store) register(ctx context.Context, m *member, sink store.Sink) error {
	for range 3 {
		var rows int
		var by holder
		err := s.trip(ctx, m.application, func(b *pgx.Batch) {
			queueSink(b, s, sink)
			b.Queue(s.text("register"), m.ID.String(), m.Name, sink.Name, m.Lease.Microseconds(), m.Host, m.PID, m.Version, sink.Settings, m.NoLeasing)
			b.Queue(s.text("join"), m.ID.String(), sink.Name, sink.Settings)
			b.Queue(s.text("held_by"), m.ID.String(), sink.Name, m.NoLeasing)
		}, func(r pgx.BatchResults) error {
			if err := sinkQueued(r); err != nil {
				return err
			}
			if err := r.QueryRow().Scan(&rows); err != nil {
				return err
			}
			if _, err := r.Exec(); err != nil {
				return err
			}
			return by.read(r)
		})
		if err == nil && by.id != "" {
			if err = s.sinkHeld(ctx, sink.Name, by); err == nil {
				continue // it is free now
			}
		}
		if err != nil || rows > 0 {
			return err
		}
		if again, err := s.nameHeld(ctx, m); !again {
			return err
		}
	}
	return &store.NameTaken{Name: m.Name, Until: time.Second}
}

// holder is a relay that has what another one wants.
type holder struct {
	id, name, host string
	pid            int
	left           int64 // of its lease, in microseconds
}

// read leaves the holder empty where there is none.
func (h *holder) read(r pgx.BatchResults) error {
	err := r.QueryRow().Scan(&h.id, &h.name, &h.host, &h.pid, &h.left)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// sinkHeld takes over an expired relay that serves a sink and does not share it, or is not to share it; a live one is the error.
func (s *Store) sinkHeld(ctx context.Context, sink string, by holder) error {
	if by.left > 0 {
		return &store.SinkHeld{Sink: sink, Name: by.name, Host: by.host, PID: by.pid, Until: time.Duration(by.left) * time.Microsecond}
	}
	s.log.Info("taking over an expired relay of the sink", "relay", by.name, "host", by.host, "pid", by.pid)
	return s.takeOver(ctx, by.id, takeExpired)
}

// nameHeld looks at who has the name. again: it is free now.
func (s *Store) nameHeld(ctx context.Context, m *member) (again bool, err error) {
	var id, host string
	var pid int
	var left int64
	err = s.trip(ctx, "", func(b *pgx.Batch) { b.Queue(s.text("holder"), m.Name) },
		func(r pgx.BatchResults) error { return r.QueryRow().Scan(&id, &host, &pid, &left) })
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return true, nil
	case err != nil:
		return false, err
	case id == m.ID.String(): // we, and the answer was lost; or another session of this relay
		return false, nil
	case left > 0:
		return false, &store.NameTaken{Name: m.Name, Host: host, PID: pid, Until: time.Duration(left) * time.Microsecond}
	}
	s.log.Info("taking over an expired relay of the same name", "relay", m.Name, "host", host, "pid", pid)
	return true, s.takeOver(ctx, id, takeExpired)
}

// renewed notes a renewal that was sent at this time and answered, by the server's life of this token.
func (m *member) renewed(token string, sent time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.token, m.sent, m.until = token, sent, sent.Add(m.Lease)
}

// beat reports whether a renewal is due, and this session is the one that sends it. Then it calls beaten. What was renewed in
// another life of the server may be lost: the database says then that the lease ends earlier than the relay believes.
func (m *member) beat(token string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.beating || m.token == token && time.Since(m.sent) < m.Heartbeat {
		return false
	}
	m.beating = true
	return true
}

func (m *member) beaten() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beating = false
}

// leased is when the lease ends, as this life of the server has it; zero where it was not renewed in it.
func (m *member) leased(token string) (until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.token == token {
		until = m.until
	}
	return until
}

// errVoid is the end of a session's memory: it must be loaded again.
func errVoid(op, detail string, cause error) error {
	return &outbox.Error{Code: store.ErrReload.Code, Op: op, Detail: detail, Err: cause}
}

func errFenced(op string) error {
	return &outbox.Error{Code: store.ErrFenced.Code, Op: op, Detail: store.ErrFenced.Detail}
}

package sqlite

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Session is one relay on one sink: a store.Session. Safe for concurrent use.
type Session struct {
	store *Store
	relay store.Relay
	sink  string
	takes outbox.Selection

	mu      sync.Mutex
	over    bool      // another relay has this one's place, or it has left
	void    bool      // what the caller holds is to be loaded again
	dropped bool      // void, and the caller has dropped what it held
	beaten  time.Time // before the last heartbeat was sent
	turned  time.Time // when Renew was last called
	epoch   int64     // 0: the sink's partition is not held
	no      int64     // of the cursor, as the session knows it
	at      int64     // the seq up to which was read, or passed over
	page    uint64    // number of the last read
	reads   []*read   // not settled whole, in order
	passes  int       // how many messages a read passes over at most
	mark    int64     // the last number given at the first read; -1: there was none
	past    bool      // that number was read, or all that there was after the session had joined
	quiet   int64     // data_version of the reader when there was nothing behind at; 0: unknown
}

var _ store.Session = (*Session)(nil)

// read is what one read gave.
type read struct {
	no   uint64
	seqs []int64
	upto int64 // what stands between the last of seqs and this is not taken
	done int   // the first of seqs that have an outcome
}

// Join registers a relay on a sink.
func (s *Store) Join(ctx context.Context, r store.Relay, k store.Sink) (store.Session, error) {
	if err := checkRelay(r, k); err != nil {
		return nil, err
	}
	if r.Page <= 0 {
		r.Page = 2048
	}
	if r.PageBytes <= 0 {
		r.PageBytes = 16 << 20
	}
	if err := checkSelection("join", k.Selection); err != nil {
		return nil, err
	}
	session := &Session{store: s, relay: r, sink: k.Name, takes: k.Selection, beaten: time.Now(), turned: time.Now(), passes: mostPassed, mark: -1}
	err := s.writer.use(ctx, func(c *call) error {
		return c.write(func() error { return c.register(r, k) })
	})
	if err != nil {
		return nil, failed("join", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[session] = true
	return session, nil
}

func checkRelay(r store.Relay, k store.Sink) error {
	var faults []string
	for _, f := range []struct {
		what string
		bad  bool
	}{
		{"an id", r.ID.IsZero()},
		{"a name", r.Name == ""},
		{"a sink", k.Name == ""},
		{"a lease", r.Lease <= 0},
		{"a heartbeat of at most a third of its lease", r.Heartbeat <= 0 || r.Heartbeat > r.Lease/3},
	} {
		if f.bad {
			faults = append(faults, f.what)
		}
	}
	if faults == nil {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "join", Detail: "the relay needs " + strings.Join(faults, ", ")}
}

// holder is the relay that has a name or an id.
type holder struct {
	id, name, host string
	pid            int
	until, lease   int64
	onSink         bool
}

func (h *holder) expired(now int64) bool { return h.until <= now || h.until > now+2*h.lease }

// register takes the name over if its holder's lease has ended, and adds the relay and the sink.
func (c *call) register(r store.Relay, k store.Sink) error {
	var now int64
	var h holder
	id, sink := r.ID.String(), k.Name
	if err := c.share(r, sink); err != nil {
		return err
	}
	if _, err := c.row("now", nil, &now); err != nil {
		return err
	}
	_, err := c.row("holder", []any{r.Name, id, sink}, &h.id, &h.name, &h.host, &h.pid, &h.until, &h.lease, &h.onSink)
	if err != nil {
		return err
	}
	switch {
	case h.id == id && h.name != r.Name:
		return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "join", Detail: "another relay has this id"}
	case h.id == id && !h.onSink: // the same relay on another sink
		_, err = c.exec("add_sink", id, sink, k.Settings)
	case h.id != "" && !h.expired(now):
		return &store.NameTaken{Name: h.name, Host: h.host, PID: h.pid, Until: time.Duration(min(h.until-now, h.lease)) * time.Microsecond}
	default:
		if h.id != "" {
			err = c.remove(h.id)
		}
		if err == nil {
			_, err = c.exec("register", id, r.Name, sink, r.Lease.Microseconds(), r.Host, r.PID, r.Version, k.Settings, r.NoLeasing)
		}
	}
	if err == nil {
		err = c.see(k)
	}
	if err == nil { // the time of the last settle is about to go
		_, err = c.exec("progress", sink)
	}
	if err == nil {
		_, err = c.exec("joined", sink)
	}
	return err
}

// share refuses a relay where it or another one of the sink does not share. One whose lease is over is taken over.
func (c *call) share(r store.Relay, sink string) error {
	for {
		var now int64
		var h holder
		if _, err := c.row("now", nil, &now); err != nil {
			return err
		}
		found, err := c.row("held_by", []any{r.ID.String(), sink, r.NoLeasing}, &h.id, &h.name, &h.host, &h.pid, &h.until, &h.lease)
		switch {
		case err != nil || !found:
			return err
		case !h.expired(now):
			return &store.SinkHeld{Sink: sink, Name: h.name, Host: h.host, PID: h.pid, Until: time.Duration(min(h.until-now, h.lease)) * time.Microsecond}
		}
		if err := c.remove(h.id); err != nil {
			return err
		}
	}
}

// remove takes a relay's place: what it held is free.
func (c *call) remove(id string) error {
	if _, err := c.exec("free_relay", id); err != nil {
		return err
	}
	_, err := c.exec("remove_relay", id)
	return err
}

// view is where the session stands in the database.
type view struct {
	now, leasedUntil int64
	held, owned      bool
	epoch, no, seq   int64
	relays           int
	othersUntil      int64 // 0: there are no others
	expired          bool  // others whose lease is over
	newest           int64 // number given
	attended         bool  // by another relay, which has renewed its lease since this one registered
}

var errGone = refusal(store.ErrFenced)

func refusal(sentinel *outbox.Error) error {
	return &outbox.Error{Code: sentinel.Code, Detail: sentinel.Detail, Hint: sentinel.Hint}
}

// look reads it; a relay that is not registered has lost its place.
func (s *Session) look(c *call) (v view, err error) {
	found, err := c.row("look", []any{s.relay.ID.String(), s.sink}, &v.now, &v.leasedUntil, &v.held, &v.owned, &v.epoch, &v.no, &v.seq,
		&v.relays, &v.othersUntil, &v.expired, &v.newest, &v.attended)
	if err == nil && !found {
		err = errGone
	}
	return v, err
}

// usable says whether the session may be used. Close may be called on a void one, and Renew once it was reset.
func (s *Session) usable(op string, evenVoid bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return failed(op, errGone)
	case s.void && !evenVoid:
		return failed(op, refusal(store.ErrReload))
	}
	return nil
}

// spoil makes the session void. The lock is held.
func (s *Session) spoil() { s.void, s.dropped = true, false }

// Reset makes the next renewal load the session again.
func (s *Session) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.void, s.dropped, s.beaten = true, true, time.Time{} // the file may be a copy that has not the last heartbeat
}

// wasReset reports whether the next renewal may load the session again.
func (s *Session) wasReset() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// check compares the view with what the session remembers. Its caller has the writer's line, so that no settle of our own
// is between the file and the memory.
func (s *Session) check(v view) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.epoch == 0 || s.void:
		return nil
	case !v.held, v.epoch != s.epoch, v.no != s.no:
		s.spoil()
		return refusal(store.ErrReload)
	}
	return nil
}

// failed notes what an error means for the session, and names the operation.
func (s *Session) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if isFate(err) && !isBusy(err) { // a busy COMMIT was rolled back by us: nothing was done
		s.spoil()
		return &outbox.Error{
			Code: store.ErrReload.Code, Op: op, Detail: "whether the database took it is not known", Hint: outbox.Hint(failed(op, err)), Err: err,
		}
	}
	switch err = failed(op, err); {
	case errors.Is(err, store.ErrFenced):
		s.over = true
	case errors.Is(err, store.ErrReload):
		s.spoil()
	}
	return err
}

// GiveBack frees the partition from where it is settled.
func (s *Session) GiveBack(ctx context.Context, partitions []int) error {
	const op = "give back"
	if err := s.usable(op, false); err != nil {
		return err
	}
	return s.failed(op, s.store.writer.use(ctx, func(c *call) error {
		err := c.write(func() error {
			v, err := s.look(c)
			if err == nil {
				err = s.check(v)
			}
			if err != nil || !v.held || !slices.Contains(partitions, 0) {
				return err
			}
			return s.free(c)
		})
		if err == nil && slices.Contains(partitions, 0) {
			return s.forget(view{})
		}
		return err
	}))
}

// free lets others have the partition, from where it is settled or passed over.
func (s *Session) free(c *call) error {
	if err := s.pass(c); err != nil {
		return err
	}
	_, err := c.exec("give_back", s.relay.ID.String(), s.sink)
	return err
}

// pass moves the cursor over what was read last and is not taken.
func (s *Session) pass(c *call) error {
	s.mu.Lock()
	held := s.epoch != 0 && !s.void
	s.mu.Unlock()
	if !held {
		return nil
	}
	p, err := s.plan(nil)
	if err == nil {
		_, err = c.exec("pass", s.relay.ID.String(), s.sink, p.seq)
	}
	return err
}

// forget drops what the session remembers and goes on from the view: its partition, if it is held.
func (s *Session) forget(v view) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.void && !s.dropped { // made so by a call beside this one: its caller holds what would be forgotten
		return refusal(store.ErrReload)
	}
	s.reads, s.void, s.dropped, s.past, s.quiet = nil, false, false, false, 0
	s.epoch, s.no, s.at = 0, v.no, v.seq
	if v.held {
		s.epoch = v.epoch
	}
	return nil
}

// Close gives everything back and leaves.
func (s *Session) Close(ctx context.Context) error {
	const op = "close"
	if err := s.usable(op, true); err != nil {
		return err
	}
	err := s.store.writer.use(ctx, func(c *call) error {
		return c.write(func() error {
			if _, err := s.look(c); err != nil {
				return err
			}
			if err := s.free(c); err != nil {
				return err
			}
			id := s.relay.ID.String()
			if _, err := c.exec("leave", id, s.sink); err != nil {
				return err
			}
			_, err := c.exec("gone", id)
			return err
		})
	})
	if err == nil || isFate(err) {
		s.end()
		s.store.mu.Lock()
		delete(s.store.sessions, s)
		s.store.mu.Unlock()
	}
	if isFate(err) { // whether the others know already, or wait for the lease to end, is not known
		return failed(op, err)
	}
	return s.failed(op, err)
}

func (s *Session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

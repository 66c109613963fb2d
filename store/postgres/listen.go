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

var _ store.Waker = (*Session)(nil)

// awaits is for how long a mark asks writers to notify; at most 4,095 ms, which outbox_wake counts with.
const awaits = 2 * time.Second

// Times of a listener.
const (
	listenProof = 2 * time.Second  // a notification takes no longer on its way
	listenPing  = 10 * time.Second // a connection that says nothing is asked whether it is there
	listenFirst = 100 * time.Millisecond
	listenLast  = 30 * time.Second // between two tries to connect
)

// listener hears, on a connection of its own, that writers have committed, and tells the sessions of its store that wait. It connects
// when the first of them does, and leaves with the last one. While it hears nothing, because the connection is down or leads through
// a pooler, or this role may not leave marks, no mark is left, and relays poll.
type listener struct {
	store *Store
	url   *pgx.ConnConfig // nil: a connection of the pool

	mu     sync.Mutex
	waits  map[*Session]bool
	stop   context.CancelFunc
	done   chan struct{} // closed when it has left; nil: it was never started
	hears  bool
	reason string // why it does not, as it was said last
}

func newListener(s *Store, url string) (*listener, error) {
	l := &listener{store: s, waits: make(map[*Session]bool)}
	if url == "" {
		return l, nil
	}
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: opOpen, Detail: "ListenURL cannot be read", Err: err}
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 10 * time.Second
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "onward"
	}
	l.url = c
	return l, nil
}

// Wait returns when a transaction that wrote messages was committed, where a read has asked for that.
func (s *Session) Wait(ctx context.Context) error {
	if !s.store.listener.add(s) {
		return errFenced("wait")
	}
	select {
	case <-s.hints:
		return nil
	case <-s.ended:
		return errFenced("wait")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// add lets a session hear; false: it is over.
func (l *listener) add(s *Session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-s.ended:
		return false
	default:
	}
	if l.waits[s] {
		return true
	}
	l.waits[s] = true
	if len(l.waits) == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		before := l.done
		l.stop, l.done = cancel, make(chan struct{})
		go l.run(ctx, before, l.done)
	}
	return true
}

// remove forgets a session that is over.
func (l *listener) remove(s *Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waits[s] {
		delete(l.waits, s)
		if len(l.waits) == 0 {
			l.stop()
		}
	}
}

// left waits until the listener has left, where no session needs it any more.
func (l *listener) left() {
	l.mu.Lock()
	done := l.done
	if len(l.waits) > 0 {
		done = nil
	}
	l.mu.Unlock()
	if done != nil {
		<-done
	}
}

// heard tells all sessions.
func (l *listener) heard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.waits {
		select {
		case s.hints <- struct{}{}:
		default: // it has one
		}
	}
}

// listens reports whether marks are of use.
func (l *listener) listens() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hears
}

// run connects again and again, until ctx ends.
func (l *listener) run(ctx context.Context, before, done chan struct{}) {
	defer close(done)
	if before != nil {
		<-before
	}
	wait := listenFirst
	for {
		proven, err := l.listen(ctx)
		l.deaf(ctx, err)
		if ctx.Err() != nil {
			return
		}
		if proven {
			wait = listenFirst
		}
		if errors.Is(err, errNoWay) {
			wait = listenLast
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		wait = min(2*wait, listenLast)
	}
}

// errNoWay: trying again soon does not help.
var errNoWay = errors.New("relays poll")

// listen serves one connection. proven: notifications came.
func (l *listener) listen(ctx context.Context) (proven bool, err error) {
	conn, err := l.connect(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ending) // there is nothing on it to lose
	}()
	if err := l.prove(ctx, conn); err != nil {
		return false, err
	}
	l.proven()
	for {
		waiting, cancel := context.WithTimeout(ctx, listenPing)
		n, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil && n.Payload == l.store.names.schema:
			l.heard()
		case err == nil || ctx.Err() != nil:
		case waiting.Err() != nil:
			err = ping(ctx, conn)
		}
		if err != nil {
			return true, err
		}
	}
}

func ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, listenProof)
	defer cancel()
	return conn.Ping(ctx)
}

// connect takes a connection out of the pool for good, so that whatever the pool does to connections is done to it.
func (l *listener) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenLast)
	defer cancel()
	if l.url != nil {
		return pgx.ConnectConfig(ctx, l.url.Copy())
	}
	c, err := l.store.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return c.Hijack(), nil
}

// prove listens, and lets the pool notify. A pooler lends server connections for a transaction each: LISTEN would stay behind on one
// of them, and what it hears would go to whoever has it then. So nothing is sent where the server says it is another process than the
// one that the connection was made to.
func (l *listener) prove(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 5*listenProof)
	defer cancel()
	var mine uint32
	var may bool
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&mine); err != nil {
		return err
	}
	if mine != conn.PgConn().PID() {
		return fmt.Errorf("the connection leads through a pooler, which does not pass notifications on: name a direct one (listen_url); until then %w", errNoWay)
	}
	if err := l.store.pool.QueryRow(ctx, l.store.text("may_mark")).Scan(&may); err != nil {
		return err
	}
	if !may {
		return fmt.Errorf("this role may not ask writers to notify (GRANT SELECT, UPDATE ON SEQUENCE %s): %w", l.store.names.sql("outbox_asleep"), errNoWay)
	}
	channel, token := l.store.names.prefix+"wake", "prove "+outbox.NewID().String()
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return err
	}
	if _, err := l.store.pool.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, token); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, listenProof)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(waiting)
		switch {
		case err != nil && waiting.Err() != nil && ctx.Err() == nil:
			return fmt.Errorf("a notification did not arrive within %v: does listen_url lead to the same database? Until it does %w", listenProof, errNoWay)
		case err != nil:
			return err
		case n.Payload == token:
			return nil
		}
	}
}

// proven lets sessions leave marks, and read at once: what was notified while nobody listened is lost.
func (l *listener) proven() {
	l.mu.Lock()
	said := l.reason != ""
	l.hears, l.reason = true, ""
	l.mu.Unlock()
	if said {
		l.store.log.Info("writers wake relays up again")
	}
	l.heard()
}

// deaf says, once for each reason, that relays poll.
func (l *listener) deaf(ctx context.Context, err error) {
	l.mu.Lock()
	said := l.reason != ""
	l.hears = false
	if ctx.Err() == nil {
		l.reason = err.Error()
	}
	l.mu.Unlock()
	if !said && ctx.Err() == nil {
		l.store.log.Warn("no wake-up by writers: relays poll", "error", err)
	}
}

package memstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Store is the database as one process sees it.
type Store struct {
	db     *DB
	clock  func() time.Time
	closed bool
}

var _ store.Store = (*Store)(nil)

var errClosed = errors.New("the store is closed")

// Info returns what the database is like.
func (s *Store) Info(ctx context.Context) (store.Info, error) {
	if _, err := s.db.begin(ctx, Call{Op: OpInfo}); err != nil {
		return store.Info{}, err
	}
	defer s.db.mu.Unlock()
	if s.closed {
		return store.Info{}, errClosed
	}
	return s.db.info(), nil
}

// Close ends the store: it can be joined no more. Sessions go on.
func (s *Store) Close() error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.closed = true
	return nil
}

// Join registers a relay on a sink.
func (s *Store) Join(ctx context.Context, r store.Relay, k store.Sink) (store.Session, error) {
	if err := checkRelay(r, k); err != nil {
		return nil, err
	}
	before := s.clock()
	fault, err := s.db.begin(ctx, Call{OpJoin, r.ID, k.Name})
	if err != nil {
		return nil, err
	}
	defer s.db.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	now := s.db.now()
	if err := s.db.register(r, k, now); err != nil {
		return nil, err
	}
	if fault.Lost {
		return nil, errors.Join(fault.Err, errJoinLost)
	}
	return newSession(s, r, k, before), nil
}

// Register makes the sink where it is new.
func (s *Store) Register(ctx context.Context, k store.Sink) error {
	if _, err := s.db.begin(ctx, Call{Op: OpJoin, Sink: k.Name}); err != nil {
		return err
	}
	defer s.db.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.db.see(k, s.db.now())
	return nil
}

var errJoinLost = errors.New("join: the answer was lost")

func checkRelay(r store.Relay, k store.Sink) error {
	var faults []string
	for what, bad := range map[string]bool{
		"an id": r.ID.IsZero(), "a name": r.Name == "", "a sink": k.Name == "", "a lease": r.Lease <= 0,
		"a heartbeat of at most a third of its lease": r.Heartbeat <= 0 || r.Heartbeat > r.Lease/3,
	} {
		if bad {
			faults = append(faults, what)
		}
	}
	if faults == nil {
		return nil
	}
	slices.Sort(faults)
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "join", Detail: "the relay needs " + strings.Join(faults, ", ")}
}

// register takes the name over if its holder's lease has ended, and adds the relay and its cursor.
func (db *DB) register(r store.Relay, as store.Sink, now time.Time) error {
	sinkName := as.Name
	if err := db.share(r, sinkName, now); err != nil {
		return err
	}
	if old := db.state.relays[r.ID]; old != nil && old.name != r.Name {
		return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "join", Detail: "another relay has this id"}
	}
	holder := db.state.named(r.Name)
	if holder != nil && holder.id == r.ID && !slices.Contains(holder.sinks, sinkName) {
		holder.sinks = append(holder.sinks, sinkName) // the same relay on another sink
		holder.settings[sinkName] = as.Settings
	} else {
		if holder != nil && !holder.expired(now) {
			return &store.NameTaken{Name: holder.name, Host: holder.host, PID: holder.pid, Until: holder.ends.Sub(now)}
		}
		if holder != nil {
			db.takeOver(holder, now)
		}
		db.state.relays[r.ID] = &relay{
			id: r.ID, name: r.Name, host: r.Host, version: r.Version, pid: r.PID, lease: r.Lease, noLeasing: r.NoLeasing,
			sinks: []string{sinkName}, settings: map[string]string{sinkName: as.Settings}, turned: map[string]time.Time{}, started: now, heartbeat: now, ends: now.Add(r.Lease),
		}
	}
	k := db.see(as, now)
	k.cursors[r.ID] = &cursor{settledAt: now}
	return nil
}

// share refuses a relay where it or another one of the sink does not share. One whose lease is over is taken over.
func (db *DB) share(r store.Relay, sink string, now time.Time) error {
	var others []*relay
	for _, other := range db.state.relays {
		if other.id != r.ID && slices.Contains(other.sinks, sink) && (other.noLeasing || r.NoLeasing) {
			others = append(others, other)
		}
	}
	slices.SortFunc(others, func(a, b *relay) int { return slices.Compare(a.id[:], b.id[:]) })
	for _, other := range others {
		if !other.expired(now) {
			return &store.SinkHeld{Sink: sink, Name: other.name, Host: other.host, PID: other.pid, Until: other.ends.Sub(now)}
		}
		db.takeOver(other, now)
	}
	return nil
}

// see makes a sink where it is new, and notes what it takes.
func (db *DB) see(as store.Sink, now time.Time) *sink {
	k := db.state.sink(as.Name)
	if k == nil {
		k = db.newSink(as)
	}
	k.selection, k.seen = as.Selection, now
	return k
}

// session is one relay on one sink. Everything of it is guarded by the database's lock.
type session struct {
	store       *Store
	db          *DB
	relay       store.Relay
	sink        string
	selection   outbox.Selection
	no          int64     // of the cursor, as the session knows it
	incarnation uint64    // of the server that the session's memory is of
	beaten      time.Time // the last heartbeat, by the process's clock
	void, over  bool
	dropped     bool    // void, and the caller knows
	mark        int64   // the last number given before the session was made
	page        uint64  // number of the last read
	reads       []*read // not settled whole, in order
	turn        int     // which partition is served first
	counts      []int   // scratch of Read
	inRoom      []bool  // scratch of Read
	hints       chan struct{}
	ended       chan struct{} // closed when the session is over
}

var _ store.Session = (*session)(nil)

func newSession(s *Store, r store.Relay, as store.Sink, beaten time.Time) *session {
	if r.Page <= 0 {
		r.Page = 2048
	}
	if r.PageBytes <= 0 {
		r.PageBytes = 16 << 20
	}
	return &session{
		store: s, db: s.db, relay: r, sink: as.Name, selection: as.Selection, beaten: beaten, incarnation: s.db.incarnation, mark: s.db.state.seq,
		hints: make(chan struct{}, 1), ended: make(chan struct{}),
		counts: make([]int, s.db.config.Partitions), inRoom: make([]bool, s.db.config.Partitions),
	}
}

// call is a call of a session that has begun: the lock is held.
type call struct {
	fault Fault
	relay *relay
	sink  *sink
	now   time.Time
}

func (s *session) begin(ctx context.Context, op Op) (call, error) {
	fault, err := s.db.begin(ctx, Call{op, s.relay.ID, s.sink})
	if err != nil {
		return call{}, err
	}
	c := call{fault: fault, now: s.db.now(), sink: s.db.state.sink(s.sink), relay: s.db.state.relays[s.relay.ID]}
	if err := s.usable(c, op); err != nil {
		s.db.mu.Unlock()
		return call{}, err
	}
	return c, nil
}

// usable says whether the session may do this.
func (s *session) usable(c call, op Op) error {
	if s.over {
		return refused(store.ErrFenced, op)
	}
	if s.incarnation != s.db.incarnation {
		s.spoil()
	}
	if s.void && (op != OpRenew || !s.dropped) && op != OpClose {
		return refused(store.ErrReload, op)
	}
	if c.relay == nil || c.sink == nil || c.sink.cursors[s.relay.ID] == nil {
		s.finish()
		return refused(store.ErrFenced, op)
	}
	if !s.void && s.no != c.sink.cursors[s.relay.ID].no {
		s.spoil()
		if op != OpClose {
			return refused(store.ErrReload, op)
		}
	}
	return nil
}

// spoil makes the session void, if it is not.
func (s *session) spoil() {
	if !s.void {
		s.void, s.dropped = true, false
	}
}

// Reset makes the next renewal load the session again.
func (s *session) Reset() {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.void, s.dropped, s.beaten = true, true, time.Time{} // what came back may not have the last heartbeat
}

// finish ends the session for good.
func (s *session) finish() {
	if !s.over {
		s.over = true
		delete(s.db.asleep, s)
		close(s.ended)
	}
}

func refused(sentinel *outbox.Error, op Op) error {
	return &outbox.Error{Code: sentinel.Code, Op: string(op), Detail: sentinel.Detail}
}

// end answers a call that was done: the answer may be lost.
func (s *session) end(c call, op Op) error {
	defer s.db.mu.Unlock()
	if !c.fault.Lost {
		return nil
	}
	s.void, s.dropped = true, false
	return &outbox.Error{
		Code: store.ErrReload.Code, Op: string(op), Err: c.fault.Err,
		Detail: "the answer was lost: whether it was done is not known",
	}
}

// Renew beats, takes over what expired, claims, and says what is held.
func (s *session) Renew(ctx context.Context, take bool) (store.Lease, error) {
	before := s.store.clock() // Until must not be later than the database has it
	c, err := s.begin(ctx, OpRenew)
	if err != nil {
		return store.Lease{}, err
	}
	if s.void {
		s.reload(c)
	}
	s.beat(c, before)
	s.db.takeOverExpired(c.relay, c.now)
	mine := 0
	for _, p := range c.sink.parts {
		if p.owner == c.relay {
			mine++
		}
	}
	target, relays, ok := s.db.state.share(c.relay, s.sink, len(c.sink.parts), c.now)
	if ok && take && mine < target {
		c.sink.claim(c.relay, target-mine)
	}
	lease := store.Lease{Lineage: strconv.Itoa(s.db.state.lineage), Until: s.beaten.Add(s.relay.Lease), Recheck: s.db.state.recheck(c.relay, c.now), Relays: relays, Unattended: c.sink.unattended(c.relay)}
	if ok {
		lease.Surplus = max(0, mine-target)
	}
	for _, p := range c.sink.parts {
		if p.owner == c.relay {
			lease.Owned = append(lease.Owned, store.Owned{Partition: p.id, Epoch: p.epoch})
		}
	}
	if err := s.end(c, OpRenew); err != nil {
		return store.Lease{}, err
	}
	return lease, nil
}

// beat renews the lease when a heartbeat is due.
func (s *session) beat(c call, now time.Time) {
	c.relay.turned[s.sink] = c.now
	for _, at := range c.relay.turned {
		if c.now.Sub(at) > c.relay.lease {
			return // a sink stands still: others must take over
		}
	}
	if now.Sub(s.beaten) < s.relay.Heartbeat && c.relay.ends.After(c.now) {
		return
	}
	s.beaten = now
	c.relay.heartbeat, c.relay.ends = c.now, c.now.Add(c.relay.lease)
}

// reload forgets what the session remembers, and goes on from what the database has.
func (s *session) reload(c call) {
	for _, p := range c.sink.parts {
		if p.owner == c.relay {
			p.restore(c.sink, s.db.config.Coarse)
		}
	}
	s.reads = nil
	s.no = c.sink.cursors[s.relay.ID].no
	s.void, s.dropped, s.incarnation = false, false, s.db.incarnation
}

// GiveBack frees partitions from where they are settled.
func (s *session) GiveBack(ctx context.Context, partitions []int) error {
	c, err := s.begin(ctx, OpGiveBack)
	if err != nil {
		return err
	}
	for _, id := range partitions {
		if id < 0 || id >= len(c.sink.parts) || c.sink.parts[id].owner != c.relay {
			continue
		}
		c.sink.parts[id].restore(c.sink, false)
		c.sink.parts[id].free(c.now)
	}
	s.fold(c)
	s.replaceCursor(c, 0)
	return s.end(c, OpGiveBack)
}

// Close gives everything back and leaves.
func (s *session) Close(ctx context.Context) error {
	c, err := s.begin(ctx, OpClose)
	if err != nil {
		return err
	}
	s.finish()
	s.db.leave(c.relay, c.sink, s.void && s.db.config.Coarse, c.now)
	c.relay.sinks = slices.DeleteFunc(c.relay.sinks, func(name string) bool { return name == s.sink })
	delete(c.relay.settings, s.sink)
	delete(c.relay.turned, s.sink)
	if len(c.relay.sinks) == 0 {
		delete(s.db.state.relays, c.relay.id)
	}
	return s.end(c, OpClose)
}

// replaceCursor is the fence: whoever comes with an older number finds nothing.
func (s *session) replaceCursor(c call, published int) {
	old := c.sink.cursors[s.relay.ID]
	s.no = old.no + 1
	c.sink.cursors[s.relay.ID] = &cursor{no: s.no, published: old.published + int64(published), settledAt: c.now}
}

// fold forgets the reads that are settled whole, from the first on.
func (s *session) fold(c call) {
	n := 0
	for n < len(s.reads) && s.reads[n].open == 0 {
		n++
	}
	if n == 0 {
		return
	}
	last := s.reads[n-1].no
	s.reads = s.reads[n:]
	for _, p := range c.sink.parts {
		for p.owner == c.relay && len(p.reads) > 0 && p.reads[0].read.no <= last {
			p.reads = p.reads[1:]
		}
	}
}

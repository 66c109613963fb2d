package memstore

import (
	"container/heap"
	"maps"
	"slices"

	"github.com/onwardhq/onward/outbox"
)

// Backup is the database as it was at one moment: what was committed, and nothing of what sessions remember.
type Backup struct{ state state }

// Backup copies the database. A standby that has replayed up to now is one, too.
func (db *DB) Backup() *Backup {
	db.mu.Lock()
	defer db.mu.Unlock()
	return &Backup{db.state.copy(db.config.Coarse)}
}

// Restart is a crash of the server and its recovery: open transactions are rolled back, and sessions must load again what the
// database has.
func (db *DB) Restart() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.restart()
}

func (db *DB) restart() {
	db.incarnation++
	for tx := range db.state.open {
		db.state.aborted[tx] = struct{}{}
	}
	maps.DeleteFunc(db.state.ids, func(_ outbox.ID, r *row) bool {
		_, open := db.state.open[r.tx]
		return open
	})
	clear(db.state.open)
	clear(db.asleep)
	for _, k := range db.state.sinks {
		for _, p := range k.parts {
			if now := db.now().UnixMilli(); now > p.epoch {
				p.epoch = now
			} else {
				p.epoch += epochLeap
			}
		}
	}
}

// When the server may have lost its tail epochs go on with the milliseconds of the clock: what claimed a partition in the lost part
// must not share its epoch with whoever claims it next, and a broker that fences by epochs must not refuse for ever what an old
// backup's owners send. Where the clock went back, epochLeap is enough for the first.
const epochLeap = 1000

// Promote makes the server what the backup is, without what was committed since: a standby that lagged behind takes over. Numbers
// are given again from where the backup was.
func (db *DB) Promote(b *Backup) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.state = b.state.copy(db.config.Coarse)
	db.restart()
}

// Restore puts a backup into another server, whose transactions are numbered anew: the lineage grows, and all cursors are rebased to
// before the first read that was not settled whole.
func (db *DB) Restore(b *Backup) {
	db.mu.Lock()
	defer db.mu.Unlock()
	lineage := db.state.lineage
	db.state = b.state.copy(true)
	db.state.lineage = max(lineage, db.state.lineage) + 1
	db.restart()
}

// Knows reports whether a relay is registered.
func (db *DB) Knows(relay outbox.ID) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.state.relays[relay] != nil
}

// Holding is what the database has of one partition of a sink.
type Holding struct {
	Relay  outbox.ID // its owner; zero: free
	Epoch  int64
	Passed int64 // the highest number that was settled
	Unread int   // messages that are in the log and were not handed over to the owner
	Open   int   // messages that were handed over and have no outcome
	Parked int   // keys that have parked messages or blocking dead letters
}

// Holding looks at a partition of a sink; of one that does not exist nothing is held.
func (db *DB) Holding(sink string, partition int) (h Holding) {
	db.mu.Lock()
	defer db.mu.Unlock()
	k := db.state.sink(sink)
	if k == nil {
		return h
	}
	p := k.parts[partition]
	h.Epoch, h.Passed, h.Unread, h.Parked = p.epoch, p.passed, len(p.unread), len(p.keys)
	if p.owner != nil {
		h.Relay = p.owner.id
	}
	for _, r := range p.reads {
		h.Open += len(r.rows) - r.n
	}
	return h
}

// copy is the state without what sessions remember of it: what was handed over and not settled is unread. It shares with the
// original what never changes.
func (s *state) copy(coarse bool) state {
	c := *s
	c.logs = make([][]*row, len(s.logs))
	rows := map[*row]*row{}
	same := func(r *row) *row {
		if r != nil && rows[r] == nil {
			twin := *r
			rows[r] = &twin
		}
		return rows[r]
	}
	for i, log := range s.logs {
		c.logs[i] = copied(log, same)
	}
	c.ids = make(map[outbox.ID]*row, len(s.ids))
	for id, r := range s.ids {
		if _, open := s.open[r.tx]; !open {
			c.ids[id] = same(r)
		}
	}
	c.aborted = maps.Clone(s.aborted)
	for tx := range s.open {
		c.aborted[tx] = struct{}{}
	}
	c.open = map[uint64]struct{}{}
	relays := map[*relay]*relay{}
	c.relays = make(map[outbox.ID]*relay, len(s.relays))
	for id, r := range s.relays {
		twin := *r
		twin.sinks, twin.settings, twin.turned = slices.Clone(r.sinks), maps.Clone(r.settings), maps.Clone(r.turned)
		relays[r], c.relays[id] = &twin, &twin
	}
	c.sinks = make([]*sink, len(s.sinks))
	for i, k := range s.sinks {
		c.sinks[i] = k.copy(coarse, same, relays)
	}
	c.audit, c.marks = slices.Clone(s.audit), slices.Clone(s.marks)
	return c
}

func copied(rows []*row, same func(*row) *row) []*row {
	all := make([]*row, len(rows))
	for i, r := range rows {
		all[i] = same(r)
	}
	return all
}

func (k *sink) copy(coarse bool, same func(*row) *row, relays map[*relay]*relay) *sink {
	c := *k
	c.skipped, c.positions, c.discarded = maps.Clone(k.skipped), maps.Clone(k.positions), maps.Clone(k.discarded)
	c.out, c.minutes, c.pauses = maps.Clone(k.out), maps.Clone(k.minutes), slices.Clone(k.pauses)
	c.attempts = maps.Clone(k.attempts)
	for id, all := range c.attempts {
		c.attempts[id] = slices.Clip(all)
	}
	c.cursors = make(map[outbox.ID]*cursor, len(k.cursors))
	for id, at := range k.cursors {
		twin := *at
		c.cursors[id] = &twin
	}
	c.dead = make(map[outbox.ID]*dead, len(k.dead))
	for id, d := range k.dead {
		twin := *d
		twin.row = same(d.row)
		c.dead[id] = &twin
	}
	c.parked = make(map[outbox.ID]*parked, len(k.parked))
	twins := make(map[*parked]*parked, len(k.parked))
	for id, r := range k.parked {
		twin := *r
		twin.row, twin.index = same(r.row), -1
		c.parked[id], twins[r] = &twin, &twin
	}
	c.parts = make([]*part, len(k.parts))
	for i, p := range k.parts {
		c.parts[i] = p.copy(&c, coarse, same, relays, twins)
	}
	return &c
}

func (p *part) copy(of *sink, coarse bool, same func(*row) *row, relays map[*relay]*relay, twins map[*parked]*parked) *part {
	c := *p
	c.owner = relays[p.owner]
	c.unread = copied(p.unread, same)
	c.reads = nil
	for _, r := range p.reads {
		c.reads = append(c.reads, &partRead{read: &read{no: r.read.no}, rows: copied(r.rows, same), n: r.n})
	}
	c.restore(of, coarse)
	lines := func(rows []*parked) (all []*parked) {
		for _, r := range rows {
			all = append(all, twins[r])
		}
		return all
	}
	c.keys = make(map[string]*line, len(p.keys))
	for key, l := range p.keys {
		c.keys[key] = &line{rows: lines(l.rows), scheduled: lines(l.scheduled), blocking: l.blocking, timed: lines(l.timed)}
	}
	c.due = lines(p.due)
	for i, r := range c.due {
		r.index = i
	}
	heap.Init(&c.due)
	return &c
}

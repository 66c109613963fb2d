// Package memstore is a database in memory: the twin of the real stores in tests and simulations. It has transactions
// whose sequence numbers are given when a message is written and become visible when it is committed, so that late
// commits happen as they do in PostgreSQL; leases, epochs and fair shares; parked messages and dead letters; and faults.
//
// Time is what Config.Now says, and nothing happens by itself: no goroutine, no timer, no random source. A run that is
// driven by one goroutine and a clock of its own is repeated exactly.
package memstore

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Config is what the database is like. The zero value works.
type Config struct {
	Partitions int // a power of two up to 16,384; 0: 64
	// Now is the database's clock; nil: time.Now. It is called under the database's lock and must not call the database.
	Now func() time.Time
	// Coarse makes cursors forget more than they must, as PostgreSQL's do: a relay that is taken over, or loads its session
	// again, gets everything of the reads in flight again, settled or not. Otherwise it gets what was not settled. Giving
	// partitions back is exact either way.
	Coarse bool
}

// DB is the database. It is safe for concurrent use.
type DB struct {
	config Config

	mu          sync.Mutex
	state       state
	incarnation uint64 // of the server: what a session remembers of an older one is void
	fault       func(Call) Fault
	asleep      map[*session]time.Time // who is to be told of the next commit, up to then
}

// state is what the database holds, apart from its open transactions.
type state struct {
	seq     int64               // the last sequence number given
	tx      uint64              // the last transaction number given
	lineage int                 // of the numbering
	logs    [][]*row            // committed messages by partition, each in order of seq
	ids     map[outbox.ID]*row  // messages that are committed or in an open transaction
	open    map[uint64]struct{} // transactions that have written and not ended
	aborted map[uint64]struct{} // transactions that were rolled back
	relays  map[outbox.ID]*relay
	sinks   []*sink // in order of their names
	audit   []AuditLine
	paused  int64 // the last pause's number

	marks     []mark // when the numbers were given, oldest first
	retention time.Duration
	retains   bool // a relay looks after retention
}

// row is a message as it was written; never changed, but that retention takes it out of the log.
type row struct {
	outbox.Record
	tx   uint64
	gone bool
}

// AuditLine is one act of a person.
type AuditLine struct {
	At            time.Time
	Actor, Action string // Action: requeue, discard, remove sink, pause, resume
	Sink          string
	ID            outbox.ID
	Reason        string
}

// New makes an empty database. It panics if the number of partitions is not a power of two up to 16,384.
func New(c Config) *DB {
	if c.Partitions == 0 {
		c.Partitions = 64
	}
	if c.Partitions < 0 || c.Partitions > 1<<14 || bits.OnesCount(uint(c.Partitions)) != 1 {
		panic("memstore: " + strconv.Itoa(c.Partitions) + " partitions: want a power of two up to 16,384")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &DB{config: c, incarnation: 1, asleep: map[*session]time.Time{}, state: state{
		lineage: 1,
		logs:    make([][]*row, c.Partitions),
		ids:     map[outbox.ID]*row{},
		open:    map[uint64]struct{}{},
		aborted: map[uint64]struct{}{},
		relays:  map[outbox.ID]*relay{},
	}}
}

// Open returns the store as a process of its own sees it. clock is that process's clock, by which Lease.Until counts;
// nil: the database's.
func (db *DB) Open(clock func() time.Time) *Store {
	if clock == nil {
		clock = db.config.Now
	}
	return &Store{db: db, clock: clock}
}

// Admin returns what people ask of the database.
func (db *DB) Admin() *Admin { return &Admin{db: db} }

// Audit returns what people did, oldest first.
func (db *DB) Audit() []AuditLine {
	db.mu.Lock()
	defer db.mu.Unlock()
	return slices.Clone(db.state.audit)
}

// Position returns the broker's position of a message where the sink recorded it, or "".
func (db *DB) Position(sink string, id outbox.ID) string {
	db.mu.Lock()
	defer db.mu.Unlock()
	if k := db.state.sink(sink); k != nil {
		return k.positions[id]
	}
	return ""
}

// now is the database's clock, to the microsecond.
func (db *DB) now() time.Time { return db.config.Now().Truncate(time.Microsecond) }

func (db *DB) info() store.Info {
	return store.Info{
		Database: "memory", Schema: 1, Partitions: db.config.Partitions, Lineage: strconv.Itoa(db.state.lineage),
	}
}

func (s *state) sink(name string) *sink {
	i, found := s.findSink(name)
	if !found {
		return nil
	}
	return s.sinks[i]
}

func (s *state) findSink(name string) (int, bool) {
	return slices.BinarySearchFunc(s.sinks, name, func(k *sink, name string) int {
		switch {
		case k.name < name:
			return -1
		case k.name > name:
			return 1
		}
		return 0
	})
}

// partitionOf is the hash of docs/names.md: the first four bytes of the key's SHA-256; of the id's text where there is no key.
func partitionOf(m *outbox.Message, partitions int) int {
	text := m.Key
	if text == "" {
		text = m.ID.String()
	}
	sum := sha256.Sum256([]byte(text))
	return int(binary.BigEndian.Uint32(sum[:4]) & uint32(partitions-1)) //nolint:gosec // at most 16,384
}

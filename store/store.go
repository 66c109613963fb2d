// Package store is what the relay asks of a database. A Store hands out a Session, one relay on one sink, which renews
// its leases, reads pages of messages, and settles what became of them. How a database knows what was published
// (snapshots on PostgreSQL, deletes on MySQL, plain numbers on SQLite) stays behind Session.
//
// What people ask for is Admin. storetest holds every store to both; memstore is the in-memory twin that passes it.
package store

import (
	"context"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// What a session's methods return besides the database's own errors.
var (
	// ErrReload: what the caller holds of this session is void (the connection broke, a settle's fate is unknown, a
	// partition came without our knowing). Every method returns it from then on. Drop all memory of the session, wait for the
	// calls that are out, and call Reset and Renew, which reads the owned partitions and their cursors from the database.
	ErrReload = &outbox.Error{Code: "onward/session-void", Detail: "the session must be loaded again from the database"}
	// ErrFenced: another relay has taken everything over. The session is over: drop all memory of it and Join again with
	// a new relay id.
	ErrFenced = &outbox.Error{Code: "onward/lease-lost", Detail: "another relay has taken this one's place"}
	// ErrLineageChanged: the database's numbering went back behind what was read, or is of another server: it was restored or
	// copied, and nothing may be published before its cursors are set anew. Stores that can do that themselves do so, and return
	// it only where they cannot.
	ErrLineageChanged = &outbox.Error{Code: "onward/lineage-changed", Detail: "the database's numbering went back"}
	// ErrNameTaken: a live relay has this name. Wait for its lease to end and Join again. See NameTaken.
	ErrNameTaken = &outbox.Error{Code: "onward/lease-held", Detail: "a live relay has this name"}
	// ErrSinkHeld: a live relay serves the sink, and it or the one that joins does not share. See SinkHeld.
	ErrSinkHeld = &outbox.Error{Code: "onward/lease-held", Detail: "a live relay serves the sink, and one of the two does not share"}
)

// What a Store refuses at start.
var (
	ErrSchemaMissing       = &outbox.Error{Code: "onward/schema-missing", Detail: "the outbox's tables do not exist"}
	ErrSchemaOld           = &outbox.Error{Code: "onward/schema-old", Detail: "the outbox's tables are older than this program"}
	ErrSchemaNew           = &outbox.Error{Code: "onward/schema-new", Detail: "the outbox's tables are newer than this program"}
	ErrDatabaseUnsupported = &outbox.Error{Code: "onward/database-unsupported", Detail: "this database cannot hold the outbox"}
)

// NameTaken is the error of Join while another live relay has the name.
type NameTaken struct {
	Name, Host string
	PID        int
	Until      time.Duration // when its lease ends if it does not renew it, from now
}

func (e *NameTaken) Error() string {
	return "relay " + e.Name + " is running on " + e.Host + " (" + string(ErrNameTaken.Code) + ")"
}

// Unwrap makes it an ErrNameTaken.
func (e *NameTaken) Unwrap() error { return ErrNameTaken }

// SinkHeld is the error of Join while another live relay serves the sink, and one of the two has Relay.NoLeasing.
type SinkHeld struct {
	Sink, Name, Host string // Name: of the relay that serves it
	PID              int
	Until            time.Duration // when its lease ends if it does not renew it, from now
}

func (e *SinkHeld) Error() string {
	return "sink " + e.Sink + " is served by relay " + e.Name + " on " + e.Host + ", and one of the two does not share (" + string(ErrSinkHeld.Code) + ")"
}

// Unwrap makes it an ErrSinkHeld.
func (e *SinkHeld) Unwrap() error { return ErrSinkHeld }

// Info is what a Store says of its database.
type Info struct {
	Database   string // "PostgreSQL 15.4"
	Schema     int    // version of the tables
	Partitions int    // how many slices the outbox has: a power of two
	Lineage    string // of the database's numbering; for people, goes out as onward-lineage
}

// Relay is a running relay as it registers.
type Relay struct {
	ID        outbox.ID // fresh at each start; one for all sinks of the relay
	Name      string    // unique among live relays
	Host      string
	Version   string
	PID       int
	Lease     time.Duration // how long the relay may be silent before others take over
	Heartbeat time.Duration // how often it renews; at most a third of Lease
	Page      int           // most messages of one read statement; 0: 2048
	PageBytes int           // most payload bytes of one read statement; 0: 16 MiB
	// NoLeasing: the relay does not share. It joins a sink that no other live relay serves, and while it lives no other may.
	NoLeasing bool
}

// Sink is a named destination with its own cursors.
type Sink struct {
	Name string
	// Selection is what the sink takes. A relay passes over everything else; what it has passed is not looked at again when
	// the selection changes.
	outbox.Selection
	// Start is where the sink begins; it counts once, when the sink is new.
	Start Start
	// Settings is how this relay serves the sink, in a line for people: relays of one sink whose lines differ are shown.
	Settings string
}

// Start is where a new sink begins. The zero value is the beginning of the outbox.
type Start struct {
	Latest bool      // after what is committed now
	Since  time.Time // with what was created at this time or later; zero: not by time
}

// Store is the relay's view of a database. Safe for concurrent use.
type Store interface {
	// Info checks that the database can be used: tables missing, old or new, a standby, an unusable setting.
	Info(ctx context.Context) (Info, error)
	// Register makes the sink where it is new, and changes nothing but its Selection where it is not.
	Register(ctx context.Context, s Sink) error
	// Join registers the relay on the sink, and the sink as Register does. It takes over an expired relay of the same name;
	// a live one is a *NameTaken error. Where this relay or one that serves the sink has NoLeasing, a live one is a *SinkHeld
	// error, and an expired one is taken over first.
	Join(ctx context.Context, r Relay, s Sink) (Session, error)
	// Close frees what the store made. A pool that the caller handed in stays open.
	Close() error
}

// Session is one relay on one sink. Safe for concurrent use, but reads are issued one after the other (they may run
// ahead of settling), and so are settlements.
//
// Every method may return ErrReload or ErrFenced, which are final for what the caller remembers; after any other error the
// same call may be repeated.
type Session interface {
	// Renew is the relay's beat, called every sixth of a heartbeat: it renews the lease when a heartbeat is due, takes
	// over what expired, and claims up to the fair share where take is set. It says all that is held now.
	Renew(ctx context.Context, take bool) (Lease, error)
	// Read returns the next messages of the partitions held. Partitions that are not in room give no fresh messages, but
	// late ones (committed after others with higher numbers) come from all. The page may be up to one Relay.Page longer
	// than room.Messages for that reason.
	Read(ctx context.Context, room Room) (Page, error)
	// Heads returns parked messages that are due, heads of their keys, at most most (0: none); when the next one will be; and
	// what is paused. Those of partitions that were gained may wait until their first read. Other processes requeue, discard
	// and pause, so it is asked at least once a second.
	Heads(ctx context.Context, partitions []int, most int) (Heads, error)
	// Followers returns the parked messages of a key in their order, those after the place given; k.Key is not empty. Of room
	// only the bounds count.
	Followers(ctx context.Context, k Key, after Place, room Room) ([]Parked, error)
	// Settle writes outcomes back in one transaction. With ErrReload its fate is unknown; with any other error nothing of it
	// was done, and the same settlement is repeated.
	Settle(ctx context.Context, s Settlement) (Settled, error)
	// Reset says that the caller has dropped all that it holds of the session: the next Renew loads it again from the database,
	// whether it is void or not. No other call of the session may be out: what it handed over would be lost. It asks nothing.
	Reset()
	// GiveBack lets others have the partitions, from where they are settled. Nothing of them may be in flight.
	GiveBack(ctx context.Context, partitions []int) error
	// Close gives everything back and leaves. The session's methods return ErrFenced afterwards.
	Close(ctx context.Context) error
}

// Waker is a Session that hears when messages are committed. Hints speed a relay up and nothing more: one may be lost, come
// twice, or be of messages that the session does not read. Readers poll as well.
type Waker interface {
	// Wait returns nil at the next hint; one that came since the last call counts. It ends with ctx's error, and with ErrFenced
	// when the session is over. A session whose Wait was never called need not promise hints.
	Wait(ctx context.Context) error
}

// Owned is a partition that a session holds, with the number of its owner: grows with each.
type Owned struct {
	Partition int
	Epoch     int64
}

// Lease is what a session holds.
type Lease struct {
	Owned []Owned // all that is held now, gains included
	// Until is when others may take over, on the caller's own clock (with its monotonic reading), counted from before the
	// last renewal was sent.
	Until   time.Time
	Surplus int           // how many are above the fair share: settle and give back
	Recheck time.Duration // when to call Renew again at the latest: a foreign lease may have run out then; 0: no wish
	Relays  int           // live relays on this sink
	Lineage string        // as Info.Lineage, of what the session reads; it may have grown. Empty: as it was
	// Unattended is how many partitions of the sink are free, or held by a relay that has not renewed its lease since this
	// one registered: it may have died.
	Unattended int
}

// Key names what must stay in order. Partition follows from Key but where Key is empty.
type Key struct {
	Partition int
	Key       string
}

// Record is a message read from the log.
type Record struct {
	outbox.Record
	// Blocked: when it was read its key had parked messages (scheduled ones not yet due do not count) or a blocking dead
	// letter. Never set on an empty key.
	Blocked bool
	// Ahead: its AvailableAt is in the future of the database's clock.
	Ahead bool
}

// Part is what a read gave of one partition, in the order in which it must go on, whatever made some of it late.
type Part struct {
	Owned
	Records []Record
}

// Page is the answer of a read.
type Page struct {
	No    uint64 // of the read within the session, from 1, growing
	Parts []Part // those with records
	More  bool   // there may be more at once; false: everything visible was read
	// Awaited is how long there will be a hint (Waker) for what is committed; 0: none is promised.
	Awaited time.Duration
	// Where Room.Mark asks for it: a number that nothing committed before Join is above, the same for the whole session (0:
	// not known yet); and the partitions of which this page and those before have given all that there is up to that number.
	// What is committed later, with a lower number, may still come.
	Mark int64
	Past []Owned
}

// Room bounds what is read. A message that is larger than Bytes comes alone.
type Room struct {
	Partitions []int // whose fresh messages are wanted
	Messages   int
	Bytes      int  // of payloads
	Mark       bool // the page is to say which partitions are past what was committed before Join
	// Await asks for a hint, once, when something is committed that this read may not have seen. Only of a Waker.
	Await bool
}

// Reason says why a message is parked.
type Reason string

// The reasons.
const (
	ReasonRetry     Reason = "retry"     // it failed and waits for its next try
	ReasonScheduled Reason = "scheduled" // its AvailableAt is ahead
	ReasonBehind    Reason = "behind"    // an earlier one of its key is parked or dead
	ReasonPaused    Reason = "paused"    // its topic, its key or the sink is paused
)

// Place orders the parked messages of a key: by Order, then Seq. Order is Seq, but for a scheduled message that found
// others of its key waiting when it came due.
type Place struct {
	Order, Seq int64
}

// Parked is a message that left the log's fast path.
type Parked struct {
	outbox.Record
	Place    Place
	Reason   Reason
	Attempts int // failed attempts so far, in all
	Before   int // of them before the last requeue: they do not count against the budget
	// Overdue is for how long it has been due, by the database's clock. Session.Heads alone says it.
	Overdue time.Duration
}

// Heads is the answer of Session.Heads.
type Heads struct {
	Due  []Parked
	Next time.Duration // when the next one is due; 0: none is waiting for a time
	More bool          // there may be more that are due
	// Pauses are all of the sink that have not ended, of the same moment as Due.
	Pauses []Pause
}

// To is where a message goes.
type To uint8

// The places.
const (
	Out  To = iota + 1 // published
	Park               // parked, or parked again
	Dead               // dead letter
)

// Verdict is what becomes of a message that does not simply go out of the log: every message parked, dead or positioned,
// and every parked message that was tried. A settlement has at most one verdict for a message. A verdict on a parked
// message that a person removed meanwhile changes nothing and is counted in Settled.Gone.
type Verdict struct {
	Partition  int
	Seq        int64
	ID         outbox.ID
	Key        string
	FromParked bool // it is a parked row now; otherwise it is in the log
	To         To
	Reason     Reason        // with Park
	Due        time.Duration // with Park and ReasonRetry: the next try, from the database's now
	Pause      int64         // with Park and ReasonPaused: Pause.ID. It is due when that pause ends; at once if it has ended
	Blocks     bool          // with Dead: it holds its key; never with an empty key
	Attempts   int           // failed attempts so far, in all
	Code       outbox.Code   // of the last failure
	Error      string        // its text; cut to 2 KiB by the store
	Position   string        // with Out: the broker's position, where the sink records positions
	Tried      *Attempt      // the failed attempt that led here, kept as a row of its own; nil: none
}

// Attempt is one failed try.
type Attempt struct {
	No      int    // from 1; goes on after a requeue
	Outcome string // the word of a broker.Outcome
	Code    outbox.Code
	Error   string        // its text; cut to 2 KiB by the store
	Took    time.Duration // until the publisher answered
}

// Done says that the first N records of a part have an outcome: published, or a verdict in this settlement or an
// earlier one.
type Done struct {
	Partition int
	Read      uint64 // Page.No
	N         int
}

// Settlement is what one Settle writes.
type Settlement struct {
	Done      []Done
	Verdicts  []Verdict
	Published int // how many messages it publishes, for the counters
}

// Settled is the answer of a settle.
type Settled struct {
	Fenced []int // partitions that are lost (on stores that fence each one)
	Gone   int   // verdicts on parked messages that were no longer there
}

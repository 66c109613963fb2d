package chaos

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/sqlite"
)

// writerName is the application name of writers' sessions.
const writerName = "chaos-writer"

// writerProcess says that a process is a writer, and which one.
const writerProcess = "ONWARD_CHAOS_WRITER"

// The topics of a run; the broker may refuse the denied one for a time, and takes none that has the poisoned one's form.
var topics = []string{"chaos.orders", "chaos.orders.paid", "chaos.stock", deniedTopic}

const (
	deniedTopic   = "chaos.denied"
	poisonedTopic = "chaos..poison"
)

// writerConfig is what a writer is started with. A writer works for several clerks, each of which ends a transaction before it
// begins the next, and has keys of its own: that is what makes the order of a key known.
type writerConfig struct {
	Store    string        `json:"store"`
	URL      string        `json:"url"`
	Name     string        `json:"name"` // keys begin with it
	Clerks   int           `json:"clerks"`
	Keys     int           `json:"keys"`     // of each clerk
	Rate     float64       `json:"rate"`     // messages a second, of each clerk
	Oversize []int         `json:"oversize"` // bytes of payloads that are refused
	Seed     uint64        `json:"seed"`
	Patience time.Duration `json:"patience"` // with a transaction
}

// Main is called first in main and in TestMain: where this process was started as a writer it writes, as a receiver it receives, and
// does not return.
func Main() {
	var w writerConfig
	var r receiverConfig
	play(writerProcess, &w, func() error { return w.run(os.Stdin) })
	play(receiverProcess, &r, func() error { return r.run() })
}

// play does not return where the variable has a configuration.
func play(variable string, config any, run func() error) {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	err := json.Unmarshal([]byte(text), config)
	if err == nil {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, variable+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// writing is a writer at work.
type writing struct {
	writerConfig
	db      *sql.DB
	special [2]atomic.Int64 // messages to come that are poison, oversize
}

// run writes until orders ends: a line of it asks for so many special messages.
func (c writerConfig) run(orders io.Reader) error {
	w := &writing{writerConfig: c}
	var err error
	if w.db, err = w.open(); err != nil {
		return err
	}
	defer func() { _ = w.db.Close() }()
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for clerk := range c.Clerks {
		group.Go(func() { w.write(ctx, clerk) })
	}
	for lines := bufio.NewScanner(orders); lines.Scan(); {
		var kind string
		var n int64
		if _, err := fmt.Sscan(lines.Text(), &kind, &n); err != nil {
			continue
		}
		if kind == Poison {
			w.special[0].Add(n)
		} else {
			w.special[1].Add(n)
		}
	}
	stop()
	group.Wait()
	return nil
}

func (w *writing) open() (*sql.DB, error) {
	if w.Store == SQLite {
		return sqlite.OpenDB(context.Background(), w.URL, sqlite.FileConfig{})
	}
	config, err := pgx.ParseConfig(w.URL)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = 3 * time.Second
	config.RuntimeParams["application_name"] = writerName
	db := stdlib.OpenDB(*config)
	db.SetMaxIdleConns(w.Clerks)
	return db, nil
}

// write is the work of one clerk. A transaction that has begun is ended, also when ctx has ended.
func (w *writing) write(ctx context.Context, clerk int) {
	rng := rand.New(rand.NewPCG(w.Seed, uint64(clerk)))
	next := map[string]int64{}
	keys := make([]string, w.Keys)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d-%d", w.Name, clerk, i)
	}
	known := false
	for ctx.Err() == nil {
		if !known {
			if known = w.ask(next, keys); !known {
				pause(ctx, 50*time.Millisecond)
				continue
			}
		}
		n := 1 + rng.IntN(4)
		if rng.IntN(50) == 0 {
			n = 30 + rng.IntN(100)
		}
		entries := make([]message, n)
		for i := range entries {
			entries[i] = w.draw(rng, next, keys)
		}
		if err := w.transact(rng, entries); err != nil {
			if !errors.Is(err, errRollback) {
				fmt.Fprintln(os.Stderr, time.Now().UTC().Format(time.RFC3339Nano), "writer", w.Name, "clerk", clerk, err)
			}
			known = false // what is committed, the ledger says
		}
		pause(ctx, time.Duration((0.5+rng.Float64())*float64(n)/w.Rate*float64(time.Second)))
	}
}

// ask reads how far each key has got.
func (w *writing) ask(next map[string]int64, keys []string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), w.Patience)
	defer cancel()
	clear(next)
	for _, key := range keys {
		var high int64
		if err := w.db.QueryRowContext(ctx, `SELECT coalesce(max(n), 0) FROM ledger WHERE partition_key = $1 AND partition_key <> ''`, key).Scan(&high); err != nil {
			return false
		}
		next[key] = high
	}
	return true
}

// message is one to be written, with its entry in the ledger.
type message struct {
	Entry
	topic   string
	payload []byte
	due     any // as the store has it; nil: now
}

// draw makes up a message.
func (w *writing) draw(rng *rand.Rand, next map[string]int64, keys []string) message {
	m := message{topic: topics[rng.IntN(len(topics))]}
	m.ID = outbox.NewID().String()
	size := 20 + rng.IntN(280)
	switch {
	case take(&w.special[0]):
		m.Kind, m.topic = Poison, poisonedTopic
	case take(&w.special[1]):
		m.Kind, size = Oversize, w.Oversize[rng.IntN(len(w.Oversize))]
	case rng.IntN(40) == 0:
		m.Kind, m.due = Later, w.time(time.Now().Add(time.Duration(rng.Int64N(int64(2*time.Second)))))
	}
	if m.Kind != Later && rng.IntN(25) > 0 { // the others have no key
		m.Key = keys[rng.IntN(len(keys))]
		if m.Kind != "" { // few keys are held by dead letters, so that the others show how fast the rest is
			m.Key = keys[0]
		}
		next[m.Key]++
		m.N = next[m.Key]
	}
	m.payload = make([]byte, size)
	for i := range m.payload {
		m.payload[i] = byte(rng.Uint32())
	}
	m.Digest = digest(m.payload)
	return m
}

// time is a time as the store has it.
func (w *writing) time(t time.Time) any {
	if w.Store == SQLite {
		return t.UnixMicro()
	}
	return t
}

func take(n *atomic.Int64) bool {
	if n.Add(-1) >= 0 {
		return true
	}
	n.Add(1)
	return false
}

var crc = crc64.MakeTable(crc64.ECMA)

// digest tells payloads apart.
func digest(payload []byte) string {
	return fmt.Sprintf("%016x-%d", crc64.Checksum(payload, crc), len(payload))
}

var errRollback = errors.New("rolled back on purpose")

// transact writes messages and their entries in one transaction. An error says nothing about whether it was committed.
func (w *writing) transact(rng *rand.Rand, all []message) error {
	ctx, cancel := context.WithTimeout(context.Background(), w.Patience)
	defer cancel()
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := insert(ctx, tx, all); err != nil {
		return err
	}
	hold := 5 * time.Millisecond
	if w.Store == Postgres && rng.IntN(40) == 0 {
		hold = 400 * time.Millisecond
	}
	pause(ctx, time.Duration(rng.Int64N(int64(hold))))
	if rng.IntN(20) == 0 {
		return errRollback
	}
	return tx.Commit()
}

// insert writes in two statements. The ledger comes first: it is there that one waits for a transaction whose client has gone.
func insert(ctx context.Context, tx *sql.Tx, all []message) error {
	var entries, messages []any
	for i := range all {
		m := &all[i]
		entries = append(entries, m.ID, m.Key, m.N, m.Digest, m.Kind, time.Now().UnixMicro())
		messages = append(messages, m.ID, m.topic, "Made", m.Key, m.payload, m.due)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO ledger (id, partition_key, n, digest, kind, at) VALUES `+rows(len(all), 6), entries...); err != nil {
		return fmt.Errorf("write to the ledger: %w", err)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO outbox_messages (id, topic, type, partition_key, payload, available_at) VALUES `+rows(len(all), 6), messages...); err != nil {
		return fmt.Errorf("write messages: %w", err)
	}
	return nil
}

// rows are the places of n rows of so many columns: ($1, $2), ($3, $4).
func rows(n, columns int) string {
	var b strings.Builder
	for i := range n * columns {
		switch {
		case i == 0:
			b.WriteString("(")
		case i%columns == 0:
			b.WriteString("), (")
		default:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "$%d", i+1)
	}
	return b.String() + ")"
}

func parseID(text string) outbox.ID {
	id, _ := outbox.ParseID(text)
	return id
}

package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/leaktest"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/relay/core"
)

// crashChild says that this process is one of TestKilledProcessesLoseNothing's.
const crashChild = "ONWARD_SQLITE_CHILD"

// child is what such a process is told.
type child struct {
	Path, Ledger, Name string
	Seed               uint64
}

func TestMain(m *testing.M) {
	if text := os.Getenv(crashChild); text != "" {
		var c child
		err := json.Unmarshal([]byte(text), &c)
		if err == nil {
			err = c.run()
		}
		fmt.Fprintln(os.Stderr, c.Name, err)
		os.Exit(1)
	}
	os.Exit(leaktest.Main(m))
}

// run writes business rows with their messages, and relays, until it is killed.
func (c *child) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, err := OpenDB(ctx, c.Path, FileConfig{BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	r, err := newCrashRelay(ctx, db, c)
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	go func() { failed <- r.Run(ctx) }()
	for w := range uint64(2) {
		go func() { failed <- writeOrders(ctx, c.Path, rand.New(rand.NewPCG(c.Seed, w))) }()
	}
	_, _ = os.Stdout.WriteString("ready\n")
	return <-failed
}

// writeOrders writes an order and some messages in each transaction; one in five is rolled back.
func writeOrders(ctx context.Context, path string, rng *rand.Rand) error {
	db, err := OpenDB(ctx, path, FileConfig{BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	out := NewSQLWriter(WriterConfig{TablePrefix: testPrefix, Serialize: []outbox.Pattern{">"}})
	for {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		ms := make([]outbox.Message, 1+rng.IntN(3))
		for i := range ms {
			ms[i] = outbox.Message{
				ID: outbox.NewID(), Topic: "orders", Type: "Written", Key: "key-" + strconv.Itoa(rng.IntN(7)), Payload: make([]byte, rng.IntN(2000)),
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders (message) VALUES (?)`, ms[i].ID.String()); err != nil {
				return err
			}
		}
		if _, err := out.WriteAll(ctx, tx, ms); err != nil {
			return err
		}
		if rng.IntN(5) == 0 {
			err = tx.Rollback()
		} else {
			err = tx.Commit()
		}
		if err != nil {
			return err
		}
	}
}

const (
	crashLease  = 500 * time.Millisecond
	crashWindow = 50
)

func newCrashRelay(ctx context.Context, db *sql.DB, c *child) (*relay.Relay, error) {
	s, err := Open(ctx, db, Config{TablePrefix: testPrefix})
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(c.Ledger, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	sink := relay.Sink{
		Name: "orders", Publisher: &ledger{file: file, rng: rand.New(rand.NewPCG(c.Seed, 99))},
		Retry: core.Retry{First: 5 * time.Millisecond, Max: 20 * time.Millisecond, Attempts: -1},
	}
	sink.Window.Messages = crashWindow
	return relay.New(relay.Config{
		Store: s, Name: c.Name, Sinks: []relay.Sink{sink}, Lease: crashLease, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

// ledger is a publisher that appends a line for each message that it takes, and refuses one in thirty for now.
type ledger struct {
	file *os.File
	mu   sync.Mutex
	rng  *rand.Rand
}

func (*ledger) Capabilities() broker.Capabilities { return broker.Capabilities{} }
func (*ledger) Check(context.Context) error       { return nil }
func (l *ledger) Close(context.Context) error     { return l.file.Close() }

func (l *ledger) Publish(_ context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range batch {
		result := broker.Result{Outcome: broker.Accepted}
		if l.rng.IntN(30) == 0 {
			result = broker.Result{Outcome: broker.Retry, Code: "test/refused", Err: errors.New("not now")}
		} else if _, err := fmt.Fprintf(l.file, "%s %d %s\n", batch[i].Key, batch[i].KeySeq, batch[i].ID); err != nil {
			result = broker.Result{Outcome: broker.Unavailable, Code: broker.CodeUnavailable, Err: err}
		}
		done(i, result)
	}
}

// Two processes write orders with their messages and relay them, one of the two at a time; one after the other is killed at
// a random moment and replaced. ONWARD_TEST_CRASHES says how often.
func TestKilledProcessesLoseNothing(t *testing.T) {
	t.Parallel()
	crashes := 6
	if n, err := strconv.Atoi(os.Getenv("ONWARD_TEST_CRASHES")); err == nil {
		crashes = n
	}
	f := newOutbox(t)
	f.exec(t, `CREATE TABLE orders (id INTEGER PRIMARY KEY, message TEXT NOT NULL UNIQUE)`)
	ledgerPath := filepath.Join(t.TempDir(), "ledger")
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	start := func(n int) *exec.Cmd {
		return startChild(t, child{Path: f.path, Ledger: ledgerPath, Name: "relay-" + strconv.Itoa(n), Seed: seed + uint64(n)})
	}
	alive := []*exec.Cmd{start(0), start(1)}
	for n := range crashes {
		pause := time.NewTimer(time.Duration(rng.Int64N(int64(300 * time.Millisecond))))
		<-pause.C
		i := rng.IntN(2)
		kill(t, alive[i])
		if check := one[string](t, f, `PRAGMA quick_check`); check != "ok" {
			t.Fatalf("after crash %d: %s", n, check)
		}
		alive[i] = start(n + 2)
	}
	for _, c := range alive {
		kill(t, c)
	}
	if check := one[string](t, f, `PRAGMA integrity_check`); check != "ok" {
		t.Fatal(check)
	}
	f.drainLedger(t, ledgerPath)
	checkLedger(t, f, ledgerPath, crashes+2)
}

func startChild(t *testing.T, c child) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), os.Args[0]) // the test ends it by a signal
	cmd.Env = append(os.Environ(), crashChild+"="+string(text))
	var words bytes.Buffer
	cmd.Stderr = &words
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = cmd.Wait()
		t.Fatalf("%s: %v: %s", c.Name, err, words.String())
	}
	return cmd
}

// kill ends a process, which must not have ended by itself.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
		t.Fatalf("a process ended by itself: %s", cmd.Stderr)
	}
}

// drainLedger lets a relay that nobody kills do the rest.
func (f file) drainLedger(t *testing.T, path string) {
	t.Helper()
	r, err := newCrashRelay(t.Context(), f.open(t), &child{Path: f.path, Ledger: path, Name: "last", Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	admin := f.admin(t)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		status, err := admin.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if k := status.Sinks[0]; k.Backlog == 0 && len(k.Parked) == 0 && k.Dead == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it is not drained: %+v", status)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// checkLedger compares what was published with what was committed.
func checkLedger(t *testing.T, f file, path string, crashes int) {
	t.Helper()
	if n := one[int](t, f, `SELECT count(*) FROM orders o LEFT JOIN outbox_messages m ON m.id = o.message WHERE m.id IS NULL`); n > 0 {
		t.Errorf("%d orders have no message", n)
	}
	if n := one[int](t, f, `SELECT count(*) FROM outbox_messages m LEFT JOIN orders o ON m.id = o.message WHERE o.id IS NULL`); n > 0 {
		t.Errorf("%d messages have no order", n)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last, seen := map[string]int{}, map[string]bool{}
	duplicates, disorder := 0, 0
	for line := range strings.Lines(string(text)) {
		var key, id string
		var n int
		if _, err := fmt.Sscan(line, &key, &n, &id); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if seen[id] {
			duplicates++
			continue
		}
		seen[id] = true
		if n != last[key]+1 {
			disorder++
		}
		last[key] = n
	}
	written := one[int](t, f, `SELECT count(*) FROM outbox_messages`)
	phantoms := 0
	for id := range seen {
		if one[int](t, f, `SELECT count(*) FROM outbox_messages WHERE id = ?`, id) == 0 {
			phantoms++
		}
	}
	t.Logf("%d crashes, %d messages: %d lost, %d never committed, %d out of order, %d twice",
		crashes, written, written-len(seen)+phantoms, phantoms, disorder, duplicates)
	if written == 0 || len(seen) != written || phantoms > 0 || disorder > 0 {
		t.Errorf("%d messages were committed and %d published, %d of them never committed, %d out of order", written, len(seen), phantoms, disorder)
	}
	if most := crashes * crashWindow; duplicates > most {
		t.Errorf("%d messages came twice, want at most a window of %d for each of %d crashes", duplicates, crashWindow, crashes)
	}
}

package kafka

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// mortal is a relay in a process of its own: it publishes what a file does not say is settled, as many messages of each partition
// as the window takes, and kills itself at a step.
type mortal struct {
	URL, Topic, Progress, Settled string
	Keys, Each, Window            int
	Step                          string // of the transactor, or "settle"; empty: it does not die
	Nth                           int    // when it comes for the n-th time
}

// mortalEnv has a mortal, as JSON, where the test binary is to be one.
const mortalEnv = "ONWARD_TEST_KAFKA_MORTAL"

// beMortal is the process.
func beMortal(text string) {
	var m mortal
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		panic(err)
	}
	if err := m.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// message is the n-th of a key: the same in each process.
func (m *mortal) message(key, n int) broker.Envelope {
	var id outbox.ID
	binary.BigEndian.PutUint32(id[:], uint32(key+1))
	binary.BigEndian.PutUint32(id[12:], uint32(n+1))
	return broker.Envelope{
		Record: &outbox.Record{
			Message: outbox.Message{ID: id, Topic: m.Topic, Key: fmt.Sprint("key-", key), Type: "Tested", ContentType: "text/plain", Payload: []byte(strconv.Itoa(n))},
			Seq:     int64(n*m.Keys + key), Partition: key % 3, CreatedAt: time.Unix(1_700_000_000, 0),
		},
		Epoch: 1, Lineage: "1", Attempt: 1,
	}
}

func (m *mortal) dies(step string) {
	if step == m.Step {
		if m.Nth--; m.Nth == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}

// load reads how many of each key are settled.
func (m *mortal) load() ([]int, error) {
	settled := make([]int, m.Keys)
	text, err := os.ReadFile(m.Settled)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		key, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return nil, err
		}
		settled[key]++
	}
	return settled, nil
}

func (m *mortal) run() error {
	settled, err := m.load()
	if err != nil {
		return err
	}
	p, err := Dial(m.URL, Options{}, Config{Transactions: Transactions{ID: m.Topic, Topic: m.Progress, Timeout: 5 * time.Second}})
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.tx.at = m.dies
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*longWait)
	defer cancel()
	if err := p.Claim(ctx, []int{0, 1, 2}); err != nil {
		return err
	}
	file, err := os.OpenFile(m.Settled, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for key := range m.Keys {
		group.Go(func() {
			for n := settled[key]; n < m.Each; {
				k, err := m.publish(ctx, p, file, &mu, key, n)
				if err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				n += k
			}
		})
	}
	group.Wait()
	return errors.Join(failed, p.Close(ctx), file.Close())
}

// publish publishes the next messages of a key at once, and settles those that are published in front.
func (m *mortal) publish(ctx context.Context, p *Publisher, file *os.File, mu *sync.Mutex, key, n int) (int, error) {
	var batch []broker.Envelope
	for i := n; i < min(n+m.Window, m.Each); i++ {
		batch = append(batch, m.message(key, i))
	}
	type answer struct {
		i int
		r broker.Result
	}
	answers := make(chan answer, len(batch))
	p.Publish(ctx, batch, func(i int, r broker.Result) { answers <- answer{i, r} })
	good := make([]bool, len(batch))
	for range batch {
		switch a := <-answers; a.r.Outcome {
		case broker.Accepted, broker.Duplicate:
			good[a.i] = true
		case broker.Rejected, broker.Retry:
			return 0, fmt.Errorf("%s: %w", a.r.Code, a.r.Err)
		}
	}
	if i := slices.Index(good, false); i >= 0 {
		batch = batch[:i]
	}
	mu.Lock()
	defer mu.Unlock()
	m.dies("settle")
	var done []broker.Published
	for i := range batch {
		if _, err := fmt.Fprintln(file, key); err != nil {
			return 0, err
		}
		done = append(done, broker.Published{Partition: batch[i].Partition, ID: batch[i].ID})
	}
	p.Settled(done)
	return len(batch), ctx.Err()
}

// kills is how often the relay is killed: 21 times, or as ONWARD_TEST_KAFKA_KILLS says.
func kills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("ONWARD_TEST_KAFKA_KILLS")
	if text == "" {
		return 21
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// steps are where it is killed, with most of the weight where a copy could come of it.
var steps = []string{"commit", "committed", "settle", "send", "commit", "register", "committed", "fence", "commit", "take over", "settle"}

// A relay that is killed between send and commit, between commit and settle, and while it claims, again and again: a reader of
// what is committed sees each message once, in the order of its key.
func TestKilledRelaysPublishNothingTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 3)
	of := b.transactions()
	m := mortal{
		URL: b.url, Topic: b.topic, Progress: of.Topic, Settled: filepath.Join(t.TempDir(), "settled"),
		Keys: 9, Each: 90 * kills(t), Window: 20,
	}
	random, killed, died := rand.New(rand.NewPCG(3, 9)), 0, map[string]int{}
	began := time.Now()
	for round := 0; killed < kills(t); round++ {
		m.Step, m.Nth = steps[round%len(steps)], 1
		if !slices.Contains([]string{"register", "fence", "take over"}, m.Step) {
			m.Nth = 1 + random.IntN(6)
		}
		if m.process(t) {
			killed++
			died[m.Step]++
		}
		if round > 3*kills(t) {
			t.Fatalf("killed %d times in %d rounds", killed, round)
		}
	}
	m.Step = ""
	if m.process(t) {
		t.Fatal("the last relay was killed")
	}
	want := m.Keys * m.Each
	parts, err := b.records(b.context(), want)
	if err != nil {
		t.Fatal(err)
	}
	next, seen := make([]int, m.Keys), 0
	for _, rs := range parts {
		for _, r := range rs {
			key, _ := strconv.Atoi(strings.TrimPrefix(string(r.Key), "key-"))
			n, _ := strconv.Atoi(string(r.Value))
			if n != next[key] {
				t.Fatalf("%s: %d came, want %d: lost, twice or out of order", r.Key, n, next[key])
			}
			next[key]++
			seen++
		}
	}
	if seen != want {
		t.Errorf("%d messages arrived, want %d", seen, want)
	}
	t.Logf("killed %d times in %s (%v): %d messages, none lost, none twice, none out of order", killed, time.Since(began).Round(time.Millisecond), died, seen)
}

// process runs the relay, and reports whether it was killed.
func (m *mortal) process(t *testing.T) bool {
	t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), mortalEnv+"="+string(text))
	out, err := c.CombinedOutput()
	if err == nil {
		return false
	}
	if status, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		return true
	}
	t.Fatalf("the relay ended with %v: %s", err, out)
	return false
}

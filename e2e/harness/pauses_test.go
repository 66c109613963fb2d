package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// What `onward pause` holds back stops within a second after it returned, on all relays, by the broker's clock; what it does not hold goes
// on, and `onward resume` lets it come, in order.
func TestAPauseHoldsOnAllRelaysWithinASecond(t *testing.T) { //nolint:paralleltest // a second is a second: the machine is this test's own
	const partitions = 16
	s := open(t, partitions, &Workload{Keys: 200, Writers: 4, Payload: 64, Pause: 2 * raceFactor * time.Millisecond, Seed: 11})
	p := &program{scene: s, file: filepath.Join(t.TempDir(), "onward")}
	p.build()
	for _, name := range []string{"one", "two"} {
		p.relay(name)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.work.Run(ctx) }()
	s.shared(partitions, "one", "two")
	halves := [][]int32{s.partitionsOf("one"), s.partitionsOf("two")}
	in := func(half []int32, key string) bool {
		return slices.Contains(half, int32(outbox.PartitionOf(key, outbox.ID{}, partitions))) //nolint:gosec // below 16,384
	}
	var keys []string // of each relay one
	for _, half := range halves {
		for i := 0; ; i++ {
			if key := fmt.Sprint("key-", i); in(half, key) {
				keys = append(keys, key)
				break
			}
		}
	}
	all := func(Arrival) bool { return true }
	for _, half := range halves {
		s.must(s.collector.WaitForOne(ctx, 20*time.Second, func(a Arrival) bool { return in(half, a.Key) }))
	}

	for _, key := range keys {
		p.holds("key", key, func(a Arrival) bool { return a.Key == key })
		p.await("messages of other keys", time.Now(), all)
		p.resumes("key", key, func(a Arrival) bool { return a.Key == key })
	}
	p.holds("topic", s.work.Topic, func(a Arrival) bool { return a.Key != "other" })
	s.must(s.insertOther())
	p.await("a message of another topic", time.Time{}, func(a Arrival) bool { return a.Key == "other" })
	p.resumes("topic", s.work.Topic, func(a Arrival) bool { return a.Key != "other" })
	p.holds("sink", "jetstream", all)
	p.resumes("sink", "jetstream", func(a Arrival) bool { return in(halves[0], a.Key) }, func(a Arrival) bool { return in(halves[1], a.Key) })

	stop()
	s.must(<-done)
	if v := s.check(0, 30*time.Second); v.Duplicates != 0 {
		t.Errorf("%d duplicates", v.Duplicates)
	}
}

// program is the program itself, on a scene.
type program struct {
	*scene
	file string
}

func (p *program) build() {
	p.t.Helper()
	command := exec.Command("go", "build", "-trimpath", "-o", p.file, "./cmd/onward")
	command.Dir = filepath.Join("..", "..")
	if out, err := command.CombinedOutput(); err != nil {
		p.t.Fatalf("go build: %v\n%s", err, out)
	}
}

func (p *program) command(name string, args ...string) *exec.Cmd {
	command := exec.CommandContext(context.Background(), p.file, args...)
	command.Env = append(os.Environ(), "ONWARD_DATABASE__URL="+p.url, "ONWARD_DATABASE__SCHEMA="+p.schema, "ONWARD_RELAY__NAME="+name,
		"ONWARD_SINKS__0__NAME=jetstream", "ONWARD_SINKS__0__URL="+p.nats, "ONWARD_SINKS__0__NATS__STREAM="+p.stream)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command
}

// relay starts `onward relay`.
func (p *program) relay(name string) {
	p.t.Helper()
	r, err := started(name, p.command(name, "relay"), &p.log)
	p.must(err)
	p.relays[name] = r
}

func (p *program) act(args ...string) {
	p.t.Helper()
	if out, err := p.command("", args...).CombinedOutput(); err != nil {
		p.t.Fatalf("onward %v: %v\n%s", args, err, out)
	}
}

// holds pauses, and looks at what the broker has while writers go on.
func (p *program) holds(kind, name string, of func(Arrival) bool) {
	p.t.Helper()
	p.act("pause", kind, name, "--reason", "a test")
	returned := time.Now()
	last := returned.Add(time.Second)
	for deadline := returned.Add(30 * time.Second); ; pause(p.t.Context(), 20*time.Millisecond) {
		p.must(p.t.Context().Err())
		if n := p.count(`SELECT count(*) FROM %q.ledger l JOIN %[1]q.outbox_messages m USING (id) WHERE m.created_at > $1`, last); n > 200 {
			break
		}
		if time.Now().After(deadline) {
			p.t.Fatal("the writers do not go on")
		}
	}
	var late time.Duration
	n := 0
	for _, a := range p.collector.Arrivals() {
		if of(a) && a.At.After(returned) {
			n++
			late = max(late, a.At.Sub(returned))
		}
	}
	p.t.Logf("pause %s: %d messages arrived after it had returned, the last one %v after", kind, n, late)
	if late > time.Second {
		p.t.Errorf("pause %s %s: a message arrived %v after it had returned, want at most a second", kind, name, late)
	}
}

// resumes wants one of each afterwards.
func (p *program) resumes(kind, name string, each ...func(Arrival) bool) {
	p.t.Helper()
	began := time.Now()
	p.act("resume", kind, name)
	for _, of := range each {
		p.await("resume "+kind, began, of)
	}
}

// await waits for a message that came after a time.
func (p *program) await(what string, after time.Time, of func(Arrival) bool) {
	p.t.Helper()
	if err := p.collector.WaitForOne(p.t.Context(), 20*time.Second, func(a Arrival) bool { return a.At.After(after) && of(a) }); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// insertOther writes a message of another topic.
func (s *scene) insertOther() error {
	_, err := s.pool.Exec(s.t.Context(), fmt.Sprintf(`WITH l AS (INSERT INTO %q.ledger (id, key, n) VALUES (gen_random_uuid(), 'other', 1) RETURNING *)
		INSERT INTO %q.outbox_messages (id, topic, type, partition_key, payload) SELECT id, $1, 'Made', key, '' FROM l`, s.schema, s.schema), s.work.Topic+".other")
	return err
}

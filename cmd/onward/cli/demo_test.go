package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/cmd/onward/internal/demo"
	"github.com/onwardhq/onward/cmd/onward/internal/golden"
	"github.com/onwardhq/onward/store"
)

// aDemo is a run of the demo, with a folder of its own for what it must remove.
type aDemo struct {
	folder   string
	words    lines
	terminal bool
}

func newDemoRun(t *testing.T) *aDemo {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "100% a folder?") // people have such
	if err := os.Mkdir(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	return &aDemo{folder: folder}
}

// run runs the demo in this process; its relays are processes of the built program.
func (d *aDemo) run(ctx context.Context, t *testing.T, args ...string) ran {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code := Run(ctx, append([]string{"demo"}, args...), Environment{
		In: strings.NewReader(""), Out: &out, Err: &d.words, Program: program, Now: time.Now,
		OutIsTerminal: d.terminal, ErrIsTerminal: d.terminal,
		// What is set for an outbox of somebody's own is not for the demo.
		Environ: append(os.Environ(), "TMPDIR="+d.folder, "ONWARD_RELAY__LEASE=nonsense"),
	})
	return ran{code, out.String(), d.words.String()}
}

// requireNothingLeft fails where the demo has left a file, or a process that knows its folder.
func (d *aDemo) requireNothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(d.folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range left {
		t.Errorf("it has left %s", file.Name())
	}
	eventually(t, "no relay runs any more", func() bool { return len(d.processes(t)) == 0 })
}

// processes are those whose arguments name the demo's folder: its relays.
func (d *aDemo) processes(t *testing.T) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		line, err := os.ReadFile(file) //nolint:gosec // of the system
		if err == nil && bytes.Contains(line, []byte(d.folder+"/")) {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

func decodeDemo(t *testing.T, r ran) (v demoView) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.out), &v); err != nil {
		t.Fatalf("%v in %q; it said %s", err, r.out, r.err)
	}
	return v
}

// The demo with each fault and without one, all at once: the proof holds, the fault was there, and nothing is left.
func TestTheDemoProvesWhatItShows(t *testing.T) {
	t.Parallel()
	for fail, happened := range map[string][]string{
		"":       {"relay-us is stopped", "standby has taken us over"}, // and started again, where the machine is quick enough
		"crash":  {"relay-us is killed", "standby has taken us over"},
		"broker": {"nats-server is stopped", "nats-server is back"},
		"poison": {"dead letter", "payload-too-large", "unroutable", "onward dead requeue", "they are tried again"},
	} {
		t.Run(fail, func(t *testing.T) {
			t.Parallel()
			d := newDemoRun(t)
			args := []string{"--for", "3s", "--rate", "20", "--seed", "11", "--output", "json"}
			if fail != "" {
				args = append(args, "--fail", fail)
			}
			r := d.run(t.Context(), t, args...)
			d.requireNothingLeft(t)
			v := decodeDemo(t, r)
			if r.code != exitDone || !v.Holds || v.Early || v.Committed < 10 || v.RolledBack == 0 || v.Keys < 2 {
				t.Errorf("code %d, %+v; it said\n%s", r.code, v.Proof, r.err)
			}
			if v.Received+len(v.NotSent) != v.Committed || v.Lost+v.NeverCommitted+v.OutOfOrder+v.Altered > 0 {
				t.Errorf("the figures do not agree: %+v", v.Proof)
			}
			for _, words := range happened {
				if !strings.Contains(r.err, words) {
					t.Errorf("it did not say %q:\n%s", words, r.err)
				}
			}
			switch {
			case fail != "poison" && len(v.NotSent) > 0:
				t.Errorf("not sent: %+v", v.NotSent)
			case fail == "poison" && (v.Dead != 2 || v.NotSent[0].Code != "onward/unroutable"):
				t.Errorf("want the two without a subject left as dead letters: %+v", v.NotSent)
			}
			if fail == "" { // the one with the steadiest story
				golden.Compare(t, "demo-json", varies.Replace(r.out))
			}
		})
	}
}

// varying replaces what differs from run to run.
type varying []struct{ what, with string }

func (all varying) Replace(text string) string {
	for _, v := range all {
		text = regexp.MustCompile(v.what).ReplaceAllString(text, v.with)
	}
	return text
}

var varies = varying{
	{`onward-demo-\d+`, "onward-demo-N"},
	{`127\.0\.0\.1:\d+`, "127.0.0.1:PORT"},
	{`--config .*/onward-demo-N`, "--config /tmp/onward-demo-N"},
	{`": \d+(\.\d+)?`, `": 0`},
	{`(?s)("events": \[.*?\}),.*\]`, "$1 ...]"}, // the others come as things happen
}

// A message that somebody takes out of the stream while the demo runs is missed at its end, and named.
func TestTheDemoFailsWhereAMessageIsGone(t *testing.T) {
	t.Parallel()
	d := newDemoRun(t)
	ended := make(chan ran)
	go func() { ended <- d.run(t.Context(), t, "--for", "2s", "--rate", "50") }()
	address := regexp.MustCompile(`nats://127\.0\.0\.1:\d+`)
	eventually(t, "it says where its server is", func() bool { return address.MatchString(d.words.String()) })
	nc, err := natsgo.Connect(address.FindString(d.words.String()))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first message can be taken out", func() bool { return stream.DeleteMsg(t.Context(), 1) == nil })
	r := <-ended
	d.requireNothingLeft(t)
	if r.code != exitFailed || !strings.Contains(r.out, "lost                     1") || !strings.Contains(r.out, "lost: message 1 of ") ||
		!strings.Contains(r.err, "error: the proof failed: 1 lost") {
		t.Errorf("code %d\n%s\n%s", r.code, r.out, r.err)
	}
}

// Ctrl-C: what was written until then is proved. On a terminal there is a picture, and no line beside it.
func TestTheDemoEndsEarlyWithItsProof(t *testing.T) {
	t.Parallel()
	d := newDemoRun(t)
	d.terminal = true
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan ran)
	go func() {
		ended <- d.run(ctx, t, "--for", "10m", "--rate", "50", "--fail", "broker", "--output", "json", "--no-color")
	}()
	written := regexp.MustCompile(`[1-9]\d* written`)
	eventually(t, "the picture shows what is written", func() bool { return written.MatchString(d.words.String()) })
	stop()
	r := <-ended
	d.requireNothingLeft(t)
	if v := decodeDemo(t, r); r.code != exitDone || !v.Holds || !v.Early || v.Committed == 0 {
		t.Errorf("code %d, %+v", r.code, v)
	}
	for frame := range strings.SplitSeq(r.err, "\x1b[?2026l") {
		if frame != "" && !strings.HasPrefix(frame, "\x1b[?2026h") {
			t.Errorf("words beside the picture: %q", frame)
		}
	}
}

// process starts the demo as a process, and waits until it runs.
func (d *aDemo) process(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd, said := console{environ: []string{"TMPDIR=" + d.folder}}.process(t, "demo", "--for", "10m", "--rate", "20")
	eventually(t, "it runs", func() bool { return strings.Contains(said.String(), "  written ") })
	if n := len(d.processes(t)); n != 4 {
		t.Errorf("%d relays run, want 4", n)
	}
	return cmd
}

// The second Ctrl-C waits for nobody, and leaves nothing all the same.
func TestTheSecondSignalLeavesNothingOfTheDemo(t *testing.T) {
	t.Parallel()
	d := newDemoRun(t)
	cmd := d.process(t)
	impatient, enough := context.WithCancel(t.Context())
	defer enough()
	go func() { // signals that come together may be one
		for again := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-again.C:
				_ = cmd.Process.Signal(os.Interrupt)
			case <-impatient.Done():
				again.Stop()
				return
			}
		}
	}()
	if code := exitOf(t, cmd); code != exitSignalled {
		t.Errorf("code %d", code)
	}
	d.requireNothingLeft(t)
}

// Whatever ends the demo, its relays end with it. Only its folder stays then.
func TestRelaysEndWithAKilledDemo(t *testing.T) {
	t.Parallel()
	d := newDemoRun(t)
	cmd := d.process(t)
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the signal
	eventually(t, "no relay runs any more", func() bool { return len(d.processes(t)) == 0 })
}

// The report as people read it: all went well, and nothing did.
func TestDemoReport(t *testing.T) {
	t.Parallel()
	well := demo.Report{Proof: demo.Proof{Holds: true, Committed: 5873, RolledBack: 287, Received: 5873, Keys: 612}, SentAgain: 14}
	badly := demo.Report{Proof: demo.Proof{
		Committed: 5873, RolledBack: 287, Received: 5870, Keys: 612, Lost: 1, NeverCommitted: 2, OutOfOrder: 3, Altered: 4, Duplicates: 6, Unexplained: 5,
		Dead: 1, Waiting: 1, Discarded: 1,
		Examples: []string{"lost: message 3 of eu-1001, 0197b0c4-6f5e-7000-8000-000000000001"},
		NotSent: []demo.Unsent{
			{ID: id(1), Sink: "eu", Key: "eu-1002", State: store.StateDead, Code: "onward/unroutable"},
			{ID: id(2), Sink: "us", Key: "us-1003", State: store.StateDiscarded},
			{ID: id(3), Sink: "eu", Key: "eu-1002", State: store.StateParked, Behind: true},
		},
	}}
	var out bytes.Buffer
	a := &app{env: Environment{Out: &out}, output: outTable}
	for _, r := range []*demo.Report{&well, &badly} {
		if err := a.reportDemo(r); err != nil {
			t.Fatal(err)
		}
		out.WriteString("[" + strings.Join(faults(&r.Proof), ", ") + "]\n")
	}
	golden.Compare(t, "demo-report", out.String())
	for line := range strings.Lines(out.String()) {
		if n := len(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("a line of %d: %q", n, line)
		}
	}
}

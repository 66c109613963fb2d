package jsonl

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
)

// roleVariable tells a child process of these tests what to do.
const roleVariable = "ONWARD_JSONL_ROLE"

// TestChild does nothing unless it is run by child.
func TestChild(t *testing.T) {
	t.Parallel()
	role, argument, _ := strings.Cut(os.Getenv(roleVariable), " ")
	switch role {
	case "write": // until it is told to stop, and says what was accepted
		writeUntilTheEnd(t, argument)
	case "full":
		meetTheFileSizeLimit(t, argument)
	case "stdout":
		meetAClosedPipe(t)
	}
}

// child starts this test binary for a role.
func child(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.v=false") //nolint:gosec // this test's own binary
	c.Env = append(os.Environ(), roleVariable+"="+role)
	c.Stderr = os.Stderr
	return c
}

func writeUntilTheEnd(t *testing.T, argument string) {
	path, name, _ := strings.Cut(argument, " ")
	p := open(t, Config{Path: path, RotateBytes: 100_000, Sync: true})
	for n := 0; ; n++ {
		batch := make([]broker.Envelope, 5)
		for i := range batch {
			batch[i] = event(5*n + i)
			batch[i].Key = name
			batch[i].Payload = bytes.Repeat([]byte{'x'}, 100*i)
		}
		for i, r := range publish(t, p, batch...) {
			if r.Outcome != broker.Accepted {
				t.Fatalf("%+v", r)
			}
			if _, err := fmt.Fprintf(os.Stdout, "accepted %s\n", batch[i].Type); err != nil {
				return
			}
		}
	}
}

// Relays of one outbox on one host share a file, and die as they like: each line is whole, none that was accepted is
// missing, and each writer's are in order.
func TestProcessesShareAFileAndAreKilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	const writers = 4
	acceptedBy := make([]int, writers) // lines, from 0 on
	done := make(chan error, writers)
	for w := range writers {
		c := child(t, fmt.Sprintf("write %s writer-%d", path, w))
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			defer func() { _ = c.Wait() }()
			for lines := bufio.NewScanner(out); lines.Scan(); {
				word, number, _ := strings.Cut(lines.Text(), " ")
				n, err := strconv.Atoi(number)
				if word != "accepted" || err != nil || n != acceptedBy[w] {
					_ = c.Process.Kill()
					done <- fmt.Errorf("writer %d said %q, want accepted %d", w, lines.Text(), acceptedBy[w])
					return
				}
				if acceptedBy[w]++; acceptedBy[w] == 300+20*w {
					_ = c.Process.Kill()
				}
			}
			done <- nil
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	p := open(t, Config{Path: path, RotateBytes: 100_000})
	accepted(t, p, 0) // ends what the last one to be killed has torn
	files := append(numbered(path), path)
	if len(files) < 4 {
		t.Errorf("%d files, want several", len(files))
	}
	next := map[string]int{}
	torn := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			r, err := parse(line)
			if err != nil {
				torn++
				continue
			}
			if r.Key != "" && r.Type != strconv.Itoa(next[r.Key]) {
				t.Fatalf("%s: line %s comes where %d should", r.Key, r.Type, next[r.Key])
			}
			next[r.Key]++
		}
	}
	if torn > writers {
		t.Errorf("%d torn lines of %d killed writers", torn, writers)
	}
	for w, n := range acceptedBy {
		if got := next[fmt.Sprint("writer-", w)]; got < n {
			t.Errorf("writer %d: %d lines, %d were accepted", w, got, n)
		}
	}
}

// meetTheFileSizeLimit: a write gets as far as the limit, as on a disk that is full.
func meetTheFileSizeLimit(t *testing.T, path string) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = 4096
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	p := open(t, Config{Path: path, Sync: true})
	accepted(t, p, 1)
	var batch []broker.Envelope
	for n := 2; n < 12; n++ {
		e := event(n)
		e.Payload = bytes.Repeat([]byte("x"), 800)
		batch = append(batch, e)
	}
	whole := []string{"1"}
	for i, r := range publish(t, p, batch...) {
		switch {
		case r.Outcome == broker.Accepted && len(whole) == i+1:
			whole = append(whole, batch[i].Type)
		case r.Outcome != broker.Unavailable || !errors.Is(r.Err, syscall.EFBIG):
			t.Errorf("message %d: %+v, want unavailable", i, r)
		}
	}
	if len(whole) < 3 || len(whole) == len(batch)+1 {
		t.Errorf("%v were written: want some", whole)
	}
	want(t, path, whole...) // the torn one was taken back
	if err := p.Check(t.Context()); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("check: %v, want that there is no room", err)
	}
	want(t, path, whole...)
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(t.Context()); err != nil {
		t.Errorf("check with room: %v", err)
	}
	want(t, path, whole...)
	accepted(t, p, 20)
	want(t, path, append(whole, "20")...)
}

func TestAFullDiskIsUnavailableAndLeavesNoTornLine(t *testing.T) {
	t.Parallel()
	if out, err := child(t, "full "+filepath.Join(t.TempDir(), "events.jsonl")).Output(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// meetAClosedPipe has standard output for itself, and reports on stderr.
func meetAClosedPipe(t *testing.T) {
	p := open(t, Config{})
	for n := 0; ; n++ {
		r := publish(t, p, event(n))[0]
		if r.Outcome == broker.Accepted {
			continue
		}
		if r.Outcome != broker.Unavailable || !errors.Is(r.Err, syscall.EPIPE) {
			t.Errorf("%+v, want unavailable", r)
		}
		break
	}
	refusing(t, p, syscall.EPIPE, "has gone")
	if !t.Failed() {
		fmt.Fprintln(os.Stderr, survived)
	}
}

const survived = "it lives, and knows that its reader has gone"

// A write to a closed standard output ends a Go program, unless somebody takes care: a relay has other sinks, and leases
// to give back.
func TestAClosedStandardOutputIsUnavailable(t *testing.T) {
	t.Parallel()
	c := child(t, "stdout")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var words bytes.Buffer
	c.Stderr = &words
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for n := range 3 {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if r, err := parse(line); err != nil || r.Type != strconv.Itoa(n) {
			t.Errorf("line %d is %q: %v", n, line, err)
		}
	}
	_ = out.Close()
	err = c.Wait() // the last words of the test binary have no reader either, and may end it
	if !strings.Contains(words.String(), survived) {
		t.Errorf("the child: %v: %s", err, words.String())
	}
}

// What the stream has taken stays taken, and a line that it took in part is ended before the next one.
func TestAStreamThatTakesAPartOfALine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = reader.Close(), writer.Close() }()
	p := open(t, Config{Output: writer})
	s := p.target.(*stream)
	fill(writer)
	small := make([]byte, 5000) // room for a part of the long line
	if _, err := io.ReadFull(reader, small); err != nil {
		t.Fatal(err)
	}
	_ = s.f.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	long := event(1)
	long.Payload = bytes.Repeat([]byte("x"), 200_000)
	if r := publish(t, p, long)[0]; r.Outcome != broker.Unavailable {
		t.Errorf("%+v, want unavailable", r)
	}
	_ = s.f.SetWriteDeadline(time.Time{})
	ended := make(chan error, 1)
	go func() {
		text, err := io.ReadAll(reader)
		if err == nil {
			err = os.WriteFile(path, bytes.TrimLeft(text, "\n"), 0o600)
		}
		ended <- err
	}()
	if r := publish(t, p, event(2))[0]; r.Outcome != broker.Accepted {
		t.Errorf("%+v, want accepted", r)
	}
	if err := errors.Join(p.Close(t.Context()), writer.Close(), <-ended); err != nil {
		t.Fatal(err)
	}
	if got := types(t, path); !slices.Equal(got, []string{"torn", "2"}) {
		t.Errorf("lines %v, want a torn one and the next", got)
	}
}

func TestAFullDeviceIsUnavailable(t *testing.T) {
	t.Parallel()
	device, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	defer func() { _ = device.Close() }()
	r := publish(t, open(t, Config{Output: device}), event(1))[0]
	if r.Outcome != broker.Unavailable || !errors.Is(r.Err, syscall.ENOSPC) || !strings.Contains(hint(r.Err), "make room") {
		t.Errorf("%+v, want unavailable", r)
	}
}

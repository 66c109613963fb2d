package jsonl

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{
		"file":                     {},
		"file, synced and rotated": {RotateBytes: 20_000, Sync: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.Run(t, func(t *testing.T) brokertest.Harness {
				c := c
				c.Path = filepath.Join(t.TempDir(), "folder", "events.jsonl")
				return fileHarness(t, c)
			})
		})
	}
	t.Run("pipe", func(t *testing.T) {
		t.Parallel()
		brokertest.Run(t, pipeHarness)
	})
}

func fileHarness(t *testing.T, c Config) brokertest.Harness {
	folder := filepath.Dir(c.Path)
	away := folder + "-away"
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	move := func(from, to string) func(*testing.T) {
		return func(t *testing.T) {
			if err := os.Rename(from, to); err != nil {
				t.Error(err)
			}
		}
	}
	h := brokertest.Harness{
		Topic:  "t",
		Open:   func(t *testing.T) broker.Publisher { return open(t, c) },
		Read:   func(ctx context.Context, n int) ([]brokertest.Message, error) { return readFiles(ctx, c, n) },
		Less:   positionLess,
		Poison: func(e *broker.Envelope) { e.Type = "\xff" },
		Stop:   move(folder, away),
		Start:  move(away, folder),
	}
	if c.RotateBytes == 0 { // else the lock would have to be taken from file to file
		h.Freeze = func(t *testing.T) func() { return lockAway(t, c.Path) }
	}
	return h
}

func open(t testing.TB, c Config) *Publisher {
	t.Helper()
	p, err := NewPublisher(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

// lockAway has another owner hold the lock of the file.
func lockAway(t *testing.T, path string) (release func()) {
	t.Helper()
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for locked := false; !locked; {
		if locked, err = tryLock(other); err != nil {
			t.Fatal(err)
		}
	}
	return func() { _ = other.Close() }
}

// positionLess: numbered files in order, then the offset.
func positionLess(a, b string) bool {
	nameA, atA, _ := strings.Cut(a, ":")
	nameB, atB, _ := strings.Cut(b, ":")
	x, errA := strconv.Atoi(atA)
	y, errB := strconv.Atoi(atB)
	return errA == nil && errB == nil && cmp.Or(strings.Compare(nameA, nameB), cmp.Compare(x, y)) < 0
}

// readFiles reads the numbered files in order, and then the one that grows.
func readFiles(ctx context.Context, c Config, n int) ([]brokertest.Message, error) {
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		ms, err := readOnce(c.Path, c.RotateBytes > 0)
		if err != nil || len(ms) >= n {
			return ms, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ms, ctx.Err()
		}
	}
}

func readOnce(path string, numbers bool) (ms []brokertest.Message, err error) {
	files := numbered(path)
	last := len(files)
	for n, file := range append(files, path) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		at := 0
		for line := range bytes.Lines(text) {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // being written
			}
			r, err := parse(line)
			if err != nil {
				return nil, err
			}
			position := filepath.Base(file) + ":" + strconv.Itoa(at)
			if n == last && numbers {
				position = fmt.Sprintf("%s-%06d.jsonl:%d", strings.TrimSuffix(filepath.Base(path), ".jsonl"), last+1, at)
			}
			ms = append(ms, r.message(position))
			at += len(line)
		}
	}
	return ms, nil
}

func numbered(path string) []string {
	extension := filepath.Ext(path)
	files, _ := filepath.Glob(strings.TrimSuffix(path, extension) + "-*" + extension)
	slices.Sort(files)
	return files
}

// pipeHarness has a consumer that reads a pipe, and may stop reading.
func pipeHarness(t *testing.T) brokertest.Harness {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := &consumer{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.read(reader)
	}()
	t.Cleanup(func() {
		_ = writer.Close()
		<-ended
	})
	return brokertest.Harness{
		Topic: "t",
		Open:  func(t *testing.T) broker.Publisher { return open(t, Config{Output: writer}) },
		Read:  c.messages,
		Freeze: func(*testing.T) func() {
			c.pause.Lock()
			fill(writer)
			return c.pause.Unlock
		},
	}
}

// fill leaves no room in the pipe: it would take much before its reader is missed.
func fill(pipe *os.File) {
	_ = pipe.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	_, _ = pipe.Write(bytes.Repeat([]byte("\n"), 1<<20))
	_ = pipe.SetWriteDeadline(time.Time{})
}

type consumer struct {
	pause, mu sync.Mutex
	all       []brokertest.Message
	err       error
}

func (c *consumer) read(from *os.File) {
	for lines := bufio.NewReaderSize(from, 64<<10); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		c.pause.Lock()
		c.pause.Unlock() //nolint:staticcheck // it has waited
		if len(line) == 1 {
			continue // of fill
		}
		c.mu.Lock()
		r, err := parse(line)
		if err != nil && c.err == nil {
			c.err = err
		}
		c.all = append(c.all, r.message(""))
		c.mu.Unlock()
	}
}

func (c *consumer) messages(ctx context.Context, n int) ([]brokertest.Message, error) {
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		c.mu.Lock()
		all, err := slices.Clone(c.all), c.err
		c.mu.Unlock()
		if err != nil || len(all) >= n {
			return all, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

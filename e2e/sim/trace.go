package sim

import (
	"fmt"
	"io"
	"time"
)

// trace is what happened: a hash of all of it and, where somebody reads them, lines.
type trace struct {
	hash  uint64
	to    io.Writer
	lines []string
	next  int
}

// Mix takes numbers into a hash (FNV-1a over words).
func Mix(hash uint64, numbers ...uint64) uint64 {
	const prime = 1099511628211
	for _, n := range numbers {
		hash = (hash ^ n) * prime
	}
	return hash
}

func (t *trace) note(numbers ...uint64) { t.hash = Mix(t.hash, numbers...) }

func (t *trace) step(no int, now time.Duration) { t.note(uint64(no), uint64(now)) } //nolint:gosec // neither is negative

// say writes a line where lines are wanted. What is in it must be in the hash by way of note.
func (t *trace) say(w *world, format string, args ...any) {
	if t.to == nil {
		return
	}
	line := fmt.Sprintf("%7d %12s  ", w.steps, w.now) + fmt.Sprintf(format, args...)
	if len(t.lines) < traced {
		t.lines = append(t.lines, line)
	} else {
		t.lines[t.next] = line
		t.next = (t.next + 1) % traced
	}
	_, _ = fmt.Fprintln(t.to, line)
}

// tail is the last lines, oldest first.
func (t *trace) tail() []string {
	return append(append([]string(nil), t.lines[t.next:]...), t.lines[:t.next]...)
}

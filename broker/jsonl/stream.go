package jsonl

import (
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/onwardhq/onward/broker"
)

// stream is standard output, or what else the caller has opened: what it has taken is gone. One goroutine uses it.
type stream struct {
	f     *os.File
	owned bool  // f was duplicated here
	torn  bool  // the last line has no end
	ended error // its reader has gone, for good
}

func newStream(f *os.File) (*stream, error) {
	if f == nil {
		f = os.Stdout
	}
	same, err := duplicate(f)
	return &stream{f: same, owned: same != f}, err
}

func (s *stream) positions() bool { return false }

// interrupt ends a write that waits for the reader, where the system can.
func (s *stream) interrupt() { _ = s.f.SetWriteDeadline(time.Unix(1, 0)) }

func (s *stream) write(lines [][]byte) []broker.Result {
	results := make([]broker.Result, len(lines))
	if s.ended != nil {
		for i := range results {
			results[i] = failure(s.ended)
		}
		return results
	}
	var text []byte
	if s.torn {
		text = append(text, '\n')
	}
	before := len(text)
	for _, line := range lines {
		text = append(text, line...)
	}
	n, err := s.f.Write(text)
	if n > 0 {
		s.torn = text[n-1] != '\n'
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		s.ended = err
	}
	n -= before
	for i, line := range lines {
		n -= len(line)
		switch {
		case n >= 0 && s.ended == nil:
			results[i] = broker.Result{Outcome: broker.Accepted}
		case n >= -1 && n+len(line) > 0: // whole, or but for a line break that comes with the next line
			results[i] = unconfirmed(err)
		default:
			results[i] = failure(err)
		}
	}
	return results
}

// check: a stream does not say whether it will take more. It says when it never will.
func (s *stream) check() error { return s.ended }

func (s *stream) close() {
	if s.owned {
		_ = s.f.Close()
	}
}

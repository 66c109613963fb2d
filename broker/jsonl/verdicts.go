package jsonl

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// tornError: the line is in the file but for its line break, which the next write may add: it may arrive.
type tornError struct{ error }

// Unwrap returns the cause.
func (e *tornError) Unwrap() error { return e.error }

// without is the error for the lines behind the torn one: of them there is nothing.
func without(err error) error {
	if torn := (*tornError)(nil); errors.As(err, &torn) {
		return torn.error
	}
	return err
}

// failure answers for a line that was not written: it is the file that takes nothing, never the message's own fault.
func failure(err error) broker.Result {
	if torn := (*tornError)(nil); errors.As(err, &torn) {
		return unconfirmed(err)
	}
	return broker.Result{Outcome: broker.Unavailable, Code: broker.CodeUnavailable, Err: err}
}

// unconfirmed answers for a line that was written, perhaps for nothing.
func unconfirmed(err error) broker.Result {
	return broker.Result{Outcome: broker.Uncertain, Code: broker.CodeUnconfirmed, Err: err}
}

// cutShort answers for a line that was being written when its context ended.
func cutShort(err error) broker.Result {
	r := unconfirmed(err)
	if errors.Is(err, context.DeadlineExceeded) {
		r.Code = broker.CodePublishTimeout
	}
	return r
}

// hint says what to do about an error of the system.
func hint(err error) string {
	switch {
	case errors.Is(err, errNotRegular):
		return "name a regular file; for a pipe or a terminal write to standard output, and send that there"
	case errors.Is(err, fs.ErrNotExist):
		return "make its folder: it is not made here, because a disk may be missing that belongs there"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return "let the relay's user make and write files there"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "make room on the disk, or in the user's quota"
	case errors.Is(err, syscall.EFBIG):
		return "let files grow (ulimit -f), or set RotateBytes"
	case errors.Is(err, syscall.EPIPE):
		return "start the relay again with a reader of its output: this one has gone, and a pipe gets no other"
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return "the disk or the stream's reader is slow, or another process holds the file's lock"
	}
	return "look at the disk, and at the system's log"
}

func unavailable(op string, err error) error {
	return &outbox.Error{Code: broker.CodeUnavailable, Op: op, Err: err, Hint: hint(err)}
}

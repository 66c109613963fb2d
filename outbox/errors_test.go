package outbox_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/onwardhq/onward/outbox"
)

func TestErrorSaysWhatWasDoneWhatWasWrongAndWhy(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]*outbox.Error{
		"write message: too long: EOF (onward/x)": {Code: "onward/x", Op: "write message", Detail: "too long", Hint: "h", Err: io.EOF},
		"too long (onward/x)":                     {Code: "onward/x", Detail: "too long"},
		"write message (onward/x)":                {Code: "onward/x", Op: "write message"},
		"EOF (onward/x)":                          {Code: "onward/x", Err: io.EOF},
	} {
		if e.Error() != want {
			t.Errorf("%q, want %q", e.Error(), want)
		}
	}
}

func TestErrorsAreEqualByCode(t *testing.T) {
	t.Parallel()
	inner := &outbox.Error{Code: outbox.ErrDuplicateMessage.Code, Err: io.EOF, Hint: "inner"}
	err := fmt.Errorf("order 7: %w", &outbox.Error{Code: outbox.ErrNoTransaction.Code, Op: "write", Err: inner})
	if !errors.Is(err, outbox.ErrNoTransaction) || !errors.Is(err, outbox.ErrDuplicateMessage) || !errors.Is(err, io.EOF) || errors.Is(err, outbox.ErrRolledBack) {
		t.Errorf("%v is not what it wraps", err)
	}
	if outbox.CodeOf(err) != outbox.ErrNoTransaction.Code || outbox.CodeOf(io.EOF) != "" || outbox.CodeOf(nil) != "" {
		t.Errorf("codes %q, %q, %q: want that of the first Error, or none", outbox.CodeOf(err), outbox.CodeOf(io.EOF), outbox.CodeOf(nil))
	}
	if outbox.Hint(err) != "inner" || outbox.Hint(io.EOF) != "" || outbox.Hint(nil) != "" || outbox.Hint(outbox.ErrRolledBack) != "" {
		t.Errorf("hint %q, want the first that there is", outbox.Hint(err))
	}
}

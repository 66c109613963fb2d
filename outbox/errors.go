package outbox

import (
	"errors"
	"strings"
)

// Code is the stable name of an error: the same text in Go, SQL, CLI, API and documentation, for example
// "onward/key-required". Codes never change their meaning; new ones may come.
type Code string

// Error is the typed error of every Onward package: what was being done, what was wrong, what to do about it, and the
// cause behind it (the database's or the broker's own error, reachable with errors.As).
//
// Two Errors are equal for errors.Is when their codes are equal, so that callers branch on the Err... values:
//
//	if errors.Is(err, outbox.ErrDuplicateMessage) { ... }
type Error struct {
	Code   Code   // never empty
	Op     string // what was being done, lower case: "write message"; empty on the Err... values
	Detail string // what was wrong, in words
	Hint   string // what to do, in words; may be empty
	Err    error  // the cause; may be nil
}

// Error returns "op: detail: cause (code)". The hint is not part of it: it is for people, see Hint.
func (e *Error) Error() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{e.Op, e.Detail} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ") + " (" + string(e.Code) + ")"
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// CodeOf returns the code of the first Error in err's tree, or "" when there is none.
func CodeOf(err error) Code {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Hint returns the first hint in err's tree, or "".
func Hint(err error) string {
	for e := (*Error)(nil); errors.As(err, &e); err = e.Err {
		if e.Hint != "" {
			return e.Hint
		}
		if e.Err == nil {
			break
		}
	}
	return ""
}

// What a write may be refused with. Nothing was written when one of these is returned; ErrDuplicateMessage and whatever
// the database itself reports leave the transaction as the database left it (PostgreSQL: aborted).
var (
	ErrTopicRequired    = &Error{Code: "onward/topic-required", Detail: "the message has no topic"}
	ErrTypeRequired     = &Error{Code: "onward/type-required", Detail: "the message has no type"}
	ErrKeyRequired      = &Error{Code: "onward/key-required", Detail: "the message has no key"}
	ErrIDInvalid        = &Error{Code: "onward/id-invalid", Detail: "the id is not a UUID"}
	ErrFieldInvalid     = &Error{Code: "onward/field-invalid", Detail: "a text has control characters or is not valid UTF-8"}
	ErrFieldTooLong     = &Error{Code: "onward/field-too-long", Detail: "a text is longer than its limit"}
	ErrHeaderInvalid    = &Error{Code: "onward/header-invalid", Detail: "a header's name or value cannot be sent"}
	ErrHeaderReserved   = &Error{Code: "onward/header-reserved", Detail: "a header's name is reserved"}
	ErrHeadersTooLarge  = &Error{Code: "onward/headers-too-large", Detail: "the headers are larger than 8 KiB"}
	ErrPayloadTooLarge  = &Error{Code: "onward/payload-too-large", Detail: "the payload is larger than its limit"}
	ErrDuplicateMessage = &Error{Code: "onward/duplicate-message", Detail: "a message with this id was written before"}
	ErrNoTransaction    = &Error{Code: "onward/no-transaction", Detail: "there is no open transaction"}
)

// Other errors that several packages share.
var (
	// ErrConfigInvalid is a setting that cannot be used.
	ErrConfigInvalid = &Error{Code: "onward/config-invalid", Detail: "the configuration is invalid"}
	// ErrIdentifierInvalid is a schema, table prefix or name that is not ^[a-z_][a-z0-9_]{0,30}$.
	ErrIdentifierInvalid = &Error{Code: "onward/identifier-invalid", Detail: "the identifier is invalid"}
	// ErrRolledBack is the state of a receipt whose transaction was rolled back: the message never was.
	ErrRolledBack = &Error{Code: "onward/rolled-back", Detail: "the transaction of this message was rolled back"}
)

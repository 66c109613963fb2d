package outbox

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"
)

// ID identifies a message: a UUID. The zero ID means "missing": a writer draws a UUIDv7 for it. The id is what receivers
// and brokers tell duplicates by, so it is unique in the outbox and never changes, through retries, dead letters and
// requeues.
type ID [16]byte

// NewID returns a UUIDv7 (RFC 9562) of this moment. Each id of a process sorts behind the ones before it, even when its
// clock goes back. It is safe for concurrent use. Use ids for identity only: several processes write, and the order of
// messages is the database's sequence number.
func NewID() ID {
	var id ID
	_, _ = rand.Read(id[6:]) // never fails since Go 1.24
	at := tick(time.Now())
	binary.BigEndian.PutUint64(id[:8], at>>12<<16|0x7000|at&0xfff)
	id[8] = id[8]&0x3f | 0x80
	return id
}

// lastTick is the time of the newest id.
var lastTick atomic.Uint64

// tick is the time in 1/4096 milliseconds, as RFC 9562 section 6.2 has it in method 3, or the next one after lastTick.
func tick(now time.Time) uint64 {
	at := uint64(now.UnixMilli())<<12 | uint64(now.Nanosecond()%int(time.Millisecond))<<12/uint64(time.Millisecond)
	for {
		last := lastTick.Load()
		if next := max(at, last+1); lastTick.CompareAndSwap(last, next) {
			return next
		}
	}
}

// IDFrom returns the same ID for the same scope and text, for ever: a UUID of version 5 (RFC 9562) whose namespace is
// the version 5 UUID of scope in the OID namespace. Use it where a natural key names the message, for example
// IDFrom("billing/invoice-paid", invoiceNumber), so that writing it twice is ErrDuplicateMessage.
func IDFrom(scope, text string) ID {
	oid := ID{0x6b, 0xa7, 0xb8, 0x12, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}
	return version5(version5(oid, scope), text)
}

func version5(namespace ID, name string) ID {
	h := sha1.New()
	h.Write(namespace[:])
	h.Write([]byte(name))
	var id ID
	copy(id[:], h.Sum(nil))
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id
}

// ParseID reads an ID as String writes it; upper-case digits are accepted. Anything else is ErrIDInvalid.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return ID{}, invalidID(s)
	}
	for i, at := range [...]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34} {
		if _, err := hex.Decode(id[i:i+1], []byte(s[at:at+2])); err != nil {
			return ID{}, invalidID(s)
		}
	}
	return id, nil
}

func invalidID(s string) error {
	if len(s) > 64 {
		s = s[:64] + "..."
	}
	return &Error{
		Code: ErrIDInvalid.Code, Op: "parse id", Detail: "\"" + s + "\" is not a UUID",
		Hint: "write it as 36 characters, for example 0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e",
	}
}

// IsZero reports whether the id is missing.
func (id ID) IsZero() bool { return id == ID{} }

// String returns the canonical text: 36 characters, lower case, with hyphens.
func (id ID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// MarshalText writes the canonical text; the zero ID is empty.
func (id ID) MarshalText() ([]byte, error) {
	if id.IsZero() {
		return nil, nil
	}
	return []byte(id.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*id = ID{}
		return nil
	}
	parsed, err := ParseID(string(text))
	if err == nil {
		*id = parsed
	}
	return err
}

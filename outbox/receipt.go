package outbox

import (
	"fmt"
	"strconv"
	"strings"
)

// Receipt finds a written message again, on any process: wait for it, ask for its state, hand it to the caller. It is
// worth nothing until the transaction commits.
type Receipt struct {
	ID        ID
	Partition int
	Seq       int64
	Tx        uint64 // the transaction; 0 where the database shows no transaction ids (MySQL, SQLite)
}

// String returns the receipt as one word that fits an HTTP header, at most 83 bytes: id.partition.seq.transaction, for
// example 0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e.18.4711.90210.
func (r Receipt) String() string {
	return fmt.Sprintf("%s.%d.%d.%d", r.ID, r.Partition, r.Seq, r.Tx)
}

// ParseReceipt reads what String writes and refuses everything else with ErrFieldInvalid.
func ParseReceipt(s string) (Receipt, error) {
	bad := func(cause error) (Receipt, error) {
		return Receipt{}, &Error{
			Code: ErrFieldInvalid.Code, Op: "parse receipt", Err: cause,
			Detail: "not a receipt: want id.partition.seq.transaction",
			Hint:   "pass the receipt on as the writer returned it",
		}
	}
	parts := strings.Split(s, ".")
	if len(s) > 83 || len(parts) != 4 {
		return bad(nil)
	}
	id, err := ParseID(parts[0])
	if err != nil {
		return bad(err)
	}
	partition, err := strconv.ParseUint(parts[1], 10, 15)
	if err != nil {
		return bad(err)
	}
	seq, err := strconv.ParseUint(parts[2], 10, 63)
	if err != nil {
		return bad(err)
	}
	tx, err := strconv.ParseUint(parts[3], 10, 64)
	if err != nil {
		return bad(err)
	}
	r := Receipt{ID: id, Partition: int(partition), Seq: int64(seq), Tx: tx}
	if r.String() != s {
		return bad(nil) // one receipt, one text: no leading zeros or signs
	}
	return r, nil
}

// MarshalText writes String.
func (r Receipt) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (r *Receipt) UnmarshalText(text []byte) error {
	parsed, err := ParseReceipt(string(text))
	if err == nil {
		*r = parsed
	}
	return err
}

package postgres

import (
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// refusal is what a server's error says, in whatever driver.
type refusal struct{ state, constraint, detail string }

// refusalOf reads the error of pgx, or of another driver by the two methods that they have in common.
func refusalOf(err error) refusal {
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
		return refusal{state: pg.Code, constraint: pg.ConstraintName, detail: pg.Detail}
	}
	var r refusal
	if e := (interface{ SQLState() string })(nil); errors.As(err, &e) {
		r.state = e.SQLState()
	}
	if e := (interface{ Get(field byte) string })(nil); errors.As(err, &e) { // lib/pq: fields of the protocol by their letter
		r.constraint, r.detail = e.Get('n'), e.Get('D')
	}
	return r
}

// refused says what an error of the database means for the write of ms.
func (w *writing) refused(err error, ms []prepared) error {
	op := "write messages"
	if len(ms) == 1 {
		op = fmt.Sprintf("write message (topic %.60q, type %.60q)", ms[0].Topic, ms[0].Type)
	}
	if e := (*outbox.Error)(nil); errors.As(err, &e) {
		return err
	}
	if errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone) {
		return &outbox.Error{Code: outbox.ErrNoTransaction.Code, Op: op, Detail: "the transaction has ended", Err: err}
	}
	r := refusalOf(err)
	switch {
	case r.state == "23505" && (r.constraint == w.names.prefix+"messages_id" || r.constraint == "" && strings.Contains(err.Error(), w.names.prefix+"messages_id")):
		return duplicate(duplicateID(r.detail, ms), "", err)
	case r.state == "42P01", r.state == "3F000": // undefined table, schema
		return &outbox.Error{Code: store.ErrSchemaMissing.Code, Op: op, Detail: store.ErrSchemaMissing.Detail, Err: err, Hint: "run: onward migrate up"}
	case r.state == "42703", r.state == "42883": // undefined column, function
		return &outbox.Error{Code: store.ErrSchemaOld.Code, Op: op, Detail: store.ErrSchemaOld.Detail, Err: err, Hint: "run: onward migrate up"}
	}
	return fmt.Errorf("%s: %w", op, err)
}

var idInDetail = regexp.MustCompile(`[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// duplicateID is the id that was there before: the server's detail names it, if the driver passes that on.
func duplicateID(detail string, ms []prepared) outbox.ID {
	if id, err := outbox.ParseID(idInDetail.FindString(detail)); err == nil {
		return id
	}
	if len(ms) == 1 {
		return ms[0].ID
	}
	return outbox.ID{}
}

func duplicate(id outbox.ID, detail string, cause error) error {
	if detail == "" {
		detail = outbox.ErrDuplicateMessage.Detail
	}
	op := "write message"
	if !id.IsZero() {
		op += " " + id.String()
	}
	return &outbox.Error{
		Code: outbox.ErrDuplicateMessage.Code, Op: op, Detail: detail, Err: cause,
		Hint: "it is there already; set IgnoreDuplicates where that is expected",
	}
}

func noTransaction(detail string) error {
	return &outbox.Error{
		Code: outbox.ErrNoTransaction.Code, Op: "write message", Detail: detail,
		Hint: "begin a transaction and write the state and the message in it",
	}
}

// scanReceipt reads a row that the statements return: id, partition, seq, transaction.
func scanReceipt(row interface{ Scan(...any) error }) (outbox.Receipt, error) {
	var (
		r      outbox.Receipt
		id, tx string
	)
	err := row.Scan(&id, &r.Partition, &r.Seq, &tx)
	if err != nil {
		return r, err
	}
	if r.ID, err = outbox.ParseID(id); err != nil {
		return r, err
	}
	r.Tx, err = strconv.ParseUint(tx, 10, 64)
	return r, err
}

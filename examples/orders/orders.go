package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/postgres"
)

// Order is an order as the API and the messages show it.
type Order struct {
	ID         string `json:"id"`
	Customer   string `json:"customer"`
	TotalCents int64  `json:"total_cents"`
	State      string `json:"state"`
}

// receiptHeader carries the receipt of the message that a request has written: with it a client can ask whether the
// message was published.
const receiptHeader = "Onward-Receipt"

var (
	errNoOrder = errors.New("there is no such order")
	errPaid    = errors.New("the order is paid already")
	errInvalid = errors.New("an order needs a customer, and a total above 0")
)

type api struct {
	pool  *pgxpool.Pool
	out   outbox.Writer[pgx.Tx]
	topic string
}

func newAPI(pool *pgxpool.Pool, s settings) http.Handler {
	a := &api{pool: pool, out: postgres.NewWriter(postgres.WriterConfig{Schema: s.schema}), topic: s.topic}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", a.create)
	mux.HandleFunc("POST /orders/{id}/pay", a.pay)
	mux.HandleFunc("GET /orders/{id}", a.show)
	return mux
}

// create writes the order and OrderCreated: both, or neither.
func (a *api) create(w http.ResponseWriter, r *http.Request) {
	var o Order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&o); err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	var receipt outbox.Receipt
	err := pgx.BeginFunc(r.Context(), a.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(r.Context(), `INSERT INTO orders (customer, total_cents) VALUES ($1, $2) RETURNING id::text, state`,
			o.Customer, o.TotalCents).Scan(&o.ID, &o.State)
		if err != nil {
			return invalid(err)
		}
		receipt, err = a.announce(r.Context(), tx, "OrderCreated", o)
		return err
	})
	w.Header().Set("Location", "/orders/"+o.ID)
	answer(w, http.StatusCreated, o, receipt, err)
}

// pay changes the state and writes OrderPaid: both, or neither.
func (a *api) pay(w http.ResponseWriter, r *http.Request) {
	var o Order
	var receipt outbox.Receipt
	err := pgx.BeginFunc(r.Context(), a.pool, func(tx pgx.Tx) (err error) {
		// The lock on the order is what brings its messages into the order of its states.
		o, err = load(r.Context(), tx, `SELECT id::text, customer, total_cents, state FROM orders WHERE id = $1 FOR UPDATE`, r.PathValue("id"))
		if err != nil {
			return err
		}
		if o.State == "paid" {
			return errPaid
		}
		o.State = "paid"
		if _, err := tx.Exec(r.Context(), `UPDATE orders SET state = $2 WHERE id = $1`, o.ID, o.State); err != nil {
			return err
		}
		receipt, err = a.announce(r.Context(), tx, "OrderPaid", o)
		return err
	})
	answer(w, http.StatusOK, o, receipt, err)
}

// invalid tells values that the table of orders refuses from what else may go wrong.
func invalid(err error) error {
	pg := (*pgconn.PgError)(nil)
	if errors.As(err, &pg) && (pg.Code == "23514" || pg.Code == "22021") { // check_violation; a NUL in the name
		return errInvalid
	}
	return err
}

func (a *api) show(w http.ResponseWriter, r *http.Request) {
	o, err := load(r.Context(), a.pool, `SELECT id::text, customer, total_cents, state FROM orders WHERE id = $1`, r.PathValue("id"))
	answer(w, http.StatusOK, o, outbox.Receipt{}, err)
}

// announce writes what happened to an order. The key keeps the messages of one order in order; the id is derived from
// what happened, so that it cannot be announced twice.
func (a *api) announce(ctx context.Context, tx pgx.Tx, what string, o Order) (outbox.Receipt, error) {
	payload, err := json.Marshal(o)
	if err != nil {
		return outbox.Receipt{}, err
	}
	return a.out.Write(ctx, tx, outbox.Message{
		ID: outbox.IDFrom("orders/"+what, o.ID), Topic: a.topic, Key: o.ID, Type: what,
		ContentType: "application/json", Payload: payload,
	})
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func load(ctx context.Context, from querier, sql, id string) (o Order, err error) {
	if _, err := outbox.ParseID(id); err != nil {
		return o, errNoOrder // what is not a UUID is no order's id
	}
	err = from.QueryRow(ctx, sql, id).Scan(&o.ID, &o.Customer, &o.TotalCents, &o.State)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errNoOrder
	}
	return o, err
}

// answer ends a request: with the order and its message's receipt, or with what went wrong.
func answer(w http.ResponseWriter, status int, o Order, receipt outbox.Receipt, err error) {
	if err != nil {
		w.Header().Del("Location")
		fail(w, statusOf(err), err)
		return
	}
	if !receipt.ID.IsZero() {
		w.Header().Set(receiptHeader, receipt.String())
	}
	send(w, status, o)
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, errNoOrder):
		return http.StatusNotFound
	case errors.Is(err, errPaid):
		return http.StatusConflict
	case errors.Is(err, errInvalid):
		return http.StatusUnprocessableEntity
	}
	return http.StatusInternalServerError
}

// fail tells the client of a fault that is its own; of ours it learns no more than that there is one.
func fail(w http.ResponseWriter, status int, err error) {
	words := err.Error()
	if status == http.StatusInternalServerError {
		slog.Error("request failed", "error", err)
		words = http.StatusText(status)
	}
	send(w, status, map[string]string{"error": words})
}

func send(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone; there is nobody left to tell
}

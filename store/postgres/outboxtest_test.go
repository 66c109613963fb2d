package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/outbox/outboxtest"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// noted is a test that notes how it failed.
type noted struct {
	testing.TB
	text string
}

func (n *noted) Helper() {}

func (n *noted) Fatalf(format string, args ...any) {
	n.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestRequireWrittenAsksTheTransaction(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	std := pgtest.Standard(t, db.Pool)
	defer func() { _ = std.Close() }()
	paid := outbox.Message{Topic: "orders", Key: "7", Type: "OrderPaid", ContentType: "application/json", Payload: []byte(`{"b": 1, "a": 2}`)}
	shipped := outbox.Message{Topic: "orders", Key: "7", Type: "OrderShipped"}

	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		out := NewWriter(config(db))
		outboxtest.RequireWritten(t, out, tx)
		if _, err := out.WriteAll(t.Context(), tx, []outbox.Message{paid, shipped}); err != nil {
			return err
		}
		outboxtest.RequireWritten(t, out, tx, paid, shipped)
		f, ended := &noted{TB: t}, make(chan struct{})
		go func() {
			defer close(ended)
			outboxtest.RequireWritten(f, out, tx, outbox.Message{Topic: "orders", Key: "8", Type: "OrderPaid"})
		}()
		<-ended
		if !strings.Contains(f.text, `Key: wrote "7", want "8"`) || !strings.Contains(f.text, "+ OrderShipped") {
			t.Errorf("it says: %s", f.text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = NewSQLWriter(config(db)).InTx(t.Context(), std, func(ctx context.Context, tx *sql.Tx) error {
		out := NewSQLWriter(config(db))
		if _, err := out.Write(ctx, tx, shipped); err != nil {
			return err
		}
		outboxtest.RequireWritten(t, out, tx, shipped) // and not what the other transaction wrote
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A Recorder refuses what a writer refuses, with the same words.
func TestARecorderAnswersLikeAWriter(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	c := config(db)
	c.Rules = outbox.Rules{RequireKey: []outbox.Pattern{"orders"}, MaxPayload: 100}
	rec, out := outboxtest.NewRecorder[pgx.Tx](outboxtest.RecorderConfig{Rules: c.Rules}), NewWriter(c)
	there := outbox.Message{ID: outbox.NewID(), Topic: "t", Type: "t"}
	for i, ms := range [][]outbox.Message{
		{there},
		{there},
		{{Topic: "orders", Type: "t"}},
		{{Topic: "t", Type: "t", Payload: make([]byte, 101)}},
		{{Topic: "t", Type: "a\x00"}},
		{{Topic: "t", Type: "t", Headers: map[string]string{"nats-x": ""}}},
		{{ID: outbox.IDFrom("a", "b"), Topic: "t", Type: "t"}, {ID: outbox.IDFrom("a", "b"), Topic: "t", Type: "t"}},
	} {
		var codes [2]outbox.Code
		var hints [2]string
		for n, w := range []outbox.Writer[pgx.Tx]{rec, out} {
			err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { _, err := w.WriteAll(t.Context(), tx, ms); return err })
			codes[n], hints[n] = outbox.CodeOf(err), outbox.Hint(err)
		}
		if codes[0] != codes[1] || hints[0] != hints[1] || (i == 0) != (codes[0] == "") {
			t.Errorf("write %d: the recorder says %s (%s), the writer %s (%s)", i, codes[0], hints[0], codes[1], hints[1])
		}
	}
}

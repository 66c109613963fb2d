package postgres

import (
	"context"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/storetest"
)

func FuzzMessages(f *testing.F) {
	storetest.FuzzMessages(f, func(tb testing.TB) (store.Store, func(context.Context) (storetest.Tx, error)) {
		tb.Helper()
		db := newOutbox(tb, 8)
		w := NewWriter(WriterConfig{Schema: db.Schema, TablePrefix: db.Prefix})
		return openStore(tb, db, db.Pool), func(ctx context.Context) (storetest.Tx, error) {
			tx, err := db.Pool.Begin(ctx)
			if err != nil {
				return nil, err
			}
			return storetest.Transaction(w, tx, tx.Commit, tx.Rollback), nil
		}
	})
}

// What an accepted schema and prefix name is one object of that schema for the server, whatever their letters.
func FuzzNames(f *testing.F) {
	for _, s := range [][2]string{{"public", "outbox_"}, {"user", "select_"}, {"", ""}, {"A", "a"}, {"a\"", "b"}, {"a.b", "c"}, {"a;--", "x"}, {"ü", "_"}, {"a\n", "b\n"}, {"_", "$1"}, {"outbox_", "outbox_outbox_"}, {strings.Repeat("a", 31), strings.Repeat("b", 32)}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, schema, prefix string) {
		n, err := newNames(schema, prefix)
		if err != nil {
			return
		}
		if schema == "" {
			schema = "public"
		}
		if prefix == "" {
			prefix = "outbox_"
		}
		for _, s := range []string{schema, prefix} {
			if len(s) > 31 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || '0' <= s[0] && s[0] <= '9' {
				t.Errorf("%q was accepted", s)
			}
		}
		got := n.sql(`SELECT outbox_messages.seq, ':outbox_x', ':outbox_' FROM outbox_messages, my_outbox_x`)
		want := `SELECT "` + schema + `".` + prefix + `messages.seq, '` + prefix + `x', '` + prefix + `' FROM "` + schema + `".` + prefix + `messages, my_outbox_x`
		if got != want {
			t.Errorf("%q, %q: %s\nwant %s", schema, prefix, got, want)
		}
	})
}

// The server selects by the regular expressions of a sink what its patterns select.
func FuzzExpression(f *testing.F) {
	for _, s := range [][3]string{{"orders.*", "orders.eu.>", "orders.paid"}, {">", "*", "a.b"}, {"a+b.(c|d)", ">", "a+b.(c|d)"}, {"\\d.[a]", "^$", "\\d.[a]"}, {"a{2}", "(?i)x", "aa"}, {"***:a", "ü.*", "***:a"}, {"*.b", "a.>", "\u2028.b"}} {
		f.Add(s[0], s[1], s[2])
	}
	db := newOutbox(f, 1)
	f.Fuzz(func(t *testing.T, takes, leaves, topic string) {
		s := outbox.Selection{Topics: []outbox.Pattern{outbox.Pattern(takes)}, Exclude: []outbox.Pattern{outbox.Pattern(leaves)}}
		_, err := outbox.Rules{}.Prepare(t.Context(), outbox.Message{Topic: topic, Type: "t"})
		if s.Validate() != nil || err != nil || !utf8.ValidString(takes+leaves) || strings.ContainsRune(takes+leaves, 0) {
			return // no pattern, or no topic, that comes to the server
		}
		var got bool
		err = db.Pool.QueryRow(t.Context(), `SELECT $1 ~ $2 AND NOT $1 ~ $3`, topic, expression(s.Topics), expression(s.Exclude)).Scan(&got)
		if err != nil || got != s.Match(topic) {
			t.Errorf("%q without %q, topic %q: the server says %v (%v), the patterns %v", takes, leaves, topic, got, err, s.Match(topic))
		}
	})
}

// A filter that is accepted is one that the server can read; a place comes back as it was written.
func FuzzFilter(f *testing.F) {
	for _, s := range [][3]string{{"", "", ""}, {"orders", "k", "18.4711"}, {"a", "\x00", "18446744073709551615.9223372036854775807.orders"}, {"\xff", "", "1"}, {"", "", "1.2.a.b"}, {"", "", "+1.-2"}, {"", "", "01.2"}, {"", "", "1.2.\x00"}} {
		f.Add(s[0], s[1], s[2], 0, 0)
	}
	f.Fuzz(func(t *testing.T, sink, key, after string, limit, attempts int) {
		q, err := newSearch(store.Filter{Sink: sink, Key: key, After: after, Limit: limit, Attempts: attempts}, "list")
		if err != nil {
			if outbox.CodeOf(err) != store.ErrFilterInvalid.Code {
				t.Errorf("%v", err)
			}
			return
		}
		for _, s := range []string{q.Sink, q.Key, q.sink} {
			if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
				t.Errorf("%q was accepted", s)
			}
		}
		if q.limit < 1 || q.limit > maxLimit || q.Attempts < 0 || q.Attempts > math.MaxInt32 {
			t.Errorf("limit %d, attempts %d", q.limit, q.Attempts)
		}
		if after != "" && q.after.token(q.sink) != after {
			t.Errorf("%q is the place %q", after, q.after.token(q.sink))
		}
	})
}

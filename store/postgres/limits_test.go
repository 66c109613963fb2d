package postgres

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// TestTheDatabaseHoldsTheLimits has, for each rule, a value that is just allowed and one that is not.
func TestTheDatabaseHoldsTheLimits(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	pool := db.As(t, "onward_producer")
	insert := func(column, value string) error {
		columns, values := []string{"topic", "type", "payload"}, []string{"'t'", "'t'", "'p'"}
		for i, c := range columns {
			if c == column {
				columns, values = append(columns[:i:i], columns[i+1:]...), append(values[:i:i], values[i+1:]...)
				break
			}
		}
		_, err := pool.Exec(t.Context(), sqlOf(db, `INSERT INTO outbox_messages (`+column+`, `+strings.Join(columns, ", ")+`) VALUES (`+value+`, `+strings.Join(values, ", ")+`)`))
		return err
	}
	text := func(n int) string { return `repeat('x', ` + fmt.Sprint(n) + `)` }
	header := func(name, value string) string { return `jsonb_build_object('` + name + `', ` + value + `)` }
	for _, c := range []struct{ column, good, bad string }{
		{"topic", text(255), text(256)},
		{"topic", `'a'`, `''`},
		{"topic", `repeat('ü', 127)`, `repeat('ü', 128)`},
		{"type", text(500), text(501)},
		{"type", `'a'`, `''`},
		{"partition_key", text(255), text(256)},
		{"scope", text(64), text(65)},
		{"content_type", text(255), text(256)},
		{"correlation_id", text(255), text(256)},
		{"causation_id", text(255), text(256)},
		{"aggregate_type", text(255), text(256)},
		{"aggregate_id", text(255), text(256)},
		{"event_id", text(255), text(256)},
		{"payload", `decode(repeat('00', 1048576), 'hex')`, `decode(repeat('00', 1048577), 'hex')`},
		{"id", `'` + idOf(1) + `'`, `'00000000-0000-0000-0000-000000000000'`},
		{"topic", `E'a\u0080'`, `E'a\nb'`},
		{"type", `E'a\u00a0'`, `E'a\rb'`},
		{"partition_key", `' a '`, `E'a\tb'`},
		{"scope", `'~'`, `E'\x7f'`},
		{"content_type", `''`, `E'\x01'`},
		{"correlation_id", `'\n'`, `E'\x1f'`},
		{"causation_id", `'日本'`, `E'日本\n'`},
		{"aggregate_type", `'"'`, `E'\x1b[31m'`},
		{"aggregate_id", `'\\'`, `E'\x0b'`},
		{"event_id", `'<&>'`, `E'\x0c'`},
		{"key_seq", "0", "-1"},
		{"available_at", `'0001-01-01 00:00+00'`, `'0001-01-01 00:00+00'::timestamptz - interval '1us'`},
		{"available_at", `'9999-12-31 23:59:59.999999+00'`, `'10000-01-01 00:00+00'`},
		{"available_at", "NULL", `'infinity'`},
		{"created_at", `'9999-12-31 23:59+00'`, `'-infinity'`},
		{"headers", `'{}'`, `'[]'`},
		{"headers", `'{"a": ""}'`, `'{"a": 1}'`},
		{"headers", `'{"a": "null"}'`, `'{"a": null}'`},
		{"headers", `'{"a": "1"}'`, `'{"a": {"b": "c"}}'`},
		{"headers", `'{"a": "b", "c": "d"}'`, `'{"a": "b", "c": ["d"]}'`},
		{"headers", header("a", `repeat('x', 8191)`), header("a", `repeat('x', 8192)`)},
		{"headers", header("a", `repeat('ü', 4095)`), header("a", `repeat('ü', 4096)`)},
		{"headers", header(strings.Repeat("n", 128), "''"), header(strings.Repeat("n", 129), "''")},
		{"headers", header("onward", "''"), header("Onward-x", "''")},
		{"headers", header("cloudevent", "''"), header("cloudEventss", "''")},
		{"headers", header("nats", "''"), header("NATS-Msg-Id", "''")},
		{"headers", header("my-nats-rollup", "''"), header("Nats-Rollup", "'all'")},
		{"headers", header("content-types", "''"), header("Content-Type", "'text/plain'")},
		{"headers", header("ce", "''"), header("ce-x", "''")},
		{"headers", header("cex", "''"), header("ce_x", "''")},
		{"headers", header("webhook", "''"), header("webhook-id", "''")},
		{"headers", header("a!#$%&''*+.^_|~-9Z", "''"), header("a b", "''")},
		{"headers", header("a", "''"), header("", "''")},
		{"headers", header("u", "''"), header("ü", "''")},
		{"headers", header("a", `E'a\tb ü'`), header("a", `E'a\nb'`)},
		{"headers", header("a", `''`), header("a", `E'\x7f'`)},
		{"headers", header("a", `E'\\n'`), header("a", `E'\x01'`)},
	} {
		if err := insert(c.column, c.good); err != nil {
			t.Errorf("%s = %.80s: %v", c.column, c.good, err)
		}
		if err := insert(c.column, c.bad); sqlState(err) != "23514" {
			t.Errorf("%s = %.80s: %v, want it refused by a CHECK", c.column, c.bad, err)
		}
	}
}

// TestHeadersRuleAgreesWithGo holds the database's rule against outbox.Rules, with headers of random characters.
func TestHeadersRuleAgreesWithGo(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 1)
	characters := []rune("abcZ09-_. \t\n\x01\x1f\x7fü()<>@,;:\\\"/[]?={}\u0080日!#$%&'*+^|~")
	starts := []string{"", "", "", "onward-", "CE-", "cE_", "CloudEvents", "nats-", "Webhook-", "webhook", "Content-Type", "content-type"}
	word := func() string {
		var b strings.Builder
		for range rand.IntN(4) {
			b.WriteRune(characters[rand.IntN(len(characters))])
		}
		return b.String()
	}
	const rounds = 2000
	all, want, refused := make([]map[string]string, rounds), make([]bool, rounds), 0
	for i := range all {
		all[i] = map[string]string{}
		for range rand.IntN(3) {
			all[i][starts[rand.IntN(len(starts))]+word()] = word()
		}
		_, err := outbox.Rules{}.Prepare(t.Context(), outbox.Message{Topic: "t", Type: "t", Headers: all[i]})
		if want[i] = err == nil; !want[i] {
			refused++
		}
	}
	got := pgtest.All[bool](t, db.Pool, sqlOf(db, `SELECT outbox_headers_valid(h) FROM unnest($1::jsonb[]) WITH ORDINALITY u(h, n) ORDER BY n`), all)
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%q: the database says %v, Go %v", all[i], got[i], want[i])
		}
	}
	if refused < rounds/10 || refused > rounds*9/10 {
		t.Errorf("%d of %d were refused: the test no longer asks both kinds", refused, rounds)
	}
}

// TestTextsRuleAgreesWithGo holds the CHECKs on the texts against outbox.Rules, with texts of random characters and of
// lengths around the limits.
func TestTextsRuleAgreesWithGo(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 1)
	limits := []int{outbox.MaxTopic, outbox.MaxType, outbox.MaxKey, outbox.MaxScope, outbox.MaxField, outbox.MaxField, outbox.MaxField, outbox.MaxField, outbox.MaxField, outbox.MaxField}
	common, rare := []rune("aZ0 .-ü日🚀\u0080\u00a0\u2028\\'\""), []rune("\x01\t\n\v\r\x1b\x1f\x7f")
	word := func(limit int) string {
		var b strings.Builder
		for range rand.IntN(4) {
			b.WriteRune(common[rand.IntN(len(common))])
		}
		switch rand.IntN(40) {
		case 0:
			b.WriteRune(rare[rand.IntN(len(rare))])
			b.WriteRune('z')
		case 1, 2:
			b.WriteString(strings.Repeat("x", limit-b.Len()+rand.IntN(2)))
		}
		return b.String()
	}
	const rounds = 1000
	refused := 0
	insert := sqlOf(db, `INSERT INTO outbox_messages (topic, type, partition_key, scope, content_type, correlation_id, causation_id, aggregate_type, aggregate_id, event_id, payload)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, '')`)
	pool := db.As(t, "onward_producer")
	for range rounds {
		texts := make([]any, len(limits))
		for i, limit := range limits {
			texts[i] = word(limit)
		}
		at := func(i int) string { return texts[i].(string) }
		_, verdict := outbox.Rules{}.Prepare(t.Context(), outbox.Message{
			Topic: at(0), Type: at(1), Key: at(2), Scope: at(3), ContentType: at(4), CorrelationID: at(5), CausationID: at(6),
			AggregateType: at(7), AggregateID: at(8), EventID: at(9),
		})
		_, err := pool.Exec(t.Context(), insert, texts...)
		if verdict != nil {
			refused++
		}
		if state := sqlState(err); (verdict == nil) != (err == nil) || err != nil && state != "23514" {
			t.Errorf("%.40q: the database says %v, Go %v", texts, err, verdict)
		}
	}
	if refused < rounds/10 || refused > rounds*9/10 {
		t.Errorf("%d of %d were refused: the test no longer asks both kinds", refused, rounds)
	}
}

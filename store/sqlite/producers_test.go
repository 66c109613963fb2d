package sqlite

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func TestDefaultsOfAPlainInsert(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	before := time.Now().Truncate(time.Millisecond)
	f.exec(t, `INSERT INTO outbox_messages (topic, type, partition_key, payload) VALUES ('orders', 'OrderPaid', 'k', '{"a": "é"}'), ('orders', 'OrderPaid', '', x'00ff')`)
	list, err := f.admin(t).Messages(t.Context(), store.Filter{})
	if err != nil || len(list.Messages) != 2 {
		t.Fatalf("%d messages, %v", len(list.Messages), err)
	}
	for i, want := range []string{"\x00\xff", `{"a": "é"}`} {
		m, err := f.admin(t).Message(t.Context(), list.Messages[i].ID)
		if err != nil {
			t.Fatal(err)
		}
		if string(m.Payload) != want || m.PayloadBytes != len(want) {
			t.Errorf("payload %q of %d bytes, want %q", m.Payload, m.PayloadBytes, want)
		}
		if id := m.ID.String(); id[14] != '7' || !strings.ContainsRune("89ab", rune(id[19])) {
			t.Errorf("%s is not a UUIDv7", id)
		}
		if m.CreatedAt.Before(before) || m.CreatedAt.After(time.Now()) || m.ContentType != outbox.DefaultContentType || !m.AvailableAt.IsZero() || len(m.Headers) > 0 {
			t.Errorf("%+v", m.Record)
		}
		var ms int64 // a UUIDv7 begins with its time
		for _, c := range strings.ReplaceAll(m.ID.String(), "-", "")[:12] {
			ms = ms<<4 | int64(strings.IndexRune("0123456789abcdef", c))
		}
		if ms < before.UnixMilli() || ms > time.Now().UnixMilli() {
			t.Errorf("id %s is of %s", m.ID, time.UnixMilli(ms))
		}
	}
	if n := one[int](t, f, `SELECT sum(partition_id) FROM outbox_messages`); n != 0 {
		t.Errorf("partitions add up to %d, want 0", n)
	}
}

func TestWhatProducersMayNotDo(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	f.exec(t, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('t', 'T', ''), ('t', 'T', ''), ('t', 'T', '')`)
	f.exec(t, `DELETE FROM outbox_messages WHERE seq < 3`) // as retention does
	for name, c := range map[string]struct{ columns, values, want string }{
		"empty topic":       {"topic", `''`, "topic_check"},
		"long topic":        {"topic", `printf('%.*c', 256, 'x')`, "topic_check"},
		"long in bytes":     {"topic", `replace(printf('%.*c', 128, 'x'), 'x', 'ü')`, "topic_check"},
		"empty type":        {"type", `''`, "type_check"},
		"long key":          {"partition_key", `printf('%.*c', 256, 'x')`, "partition_key_check"},
		"long scope":        {"scope", `printf('%.*c', 65, 'x')`, "scope_check"},
		"line break":        {"event_id", `'a' || char(10)`, "control_check"},
		"delete":            {"event_id", `'a' || char(127)`, "control_check"},
		"NUL":               {"event_id", `'a' || char(0) || 'b'`, "control_check"},
		"number payload":    {"payload", `12`, "payload_check"},
		"large payload":     {"payload", `zeroblob(1048577)`, "payload_check"},
		"null payload":      {"payload", `NULL`, "NOT NULL"},
		"upper-case id":     {"id", `'0197B0C4-6F5E-7C3A-9D1E-2F8A4B6C8D0E'`, "id_check"},
		"zero id":           {"id", `'00000000-0000-0000-0000-000000000000'`, "id_check"},
		"odd id":            {"id", `'0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0-'`, "id_check"},
		"year 0":            {"created_at", `-62135596800000001`, "created_at_check"},
		"year 10000":        {"available_at", `253402300800000000`, "available_at_check"},
		"text for a time":   {"available_at", `'tomorrow'`, "cannot store TEXT"},
		"seq below":         {"seq", `2`, "leave it out"},
		"negative seq":      {"seq", `-5`, "seq_check"},
		"partition":         {"partition_id", `1`, "generated column"},
		"no object":         {"headers", `'[]'`, "JSON object"},
		"no JSON":           {"headers", `'{'`, "JSON object"},
		"number in headers": {"headers", `'{"a": 1}'`, "not allowed"},
		"reserved header":   {"headers", `'{"Onward-Id": "x"}'`, "not allowed"},
		"content type":      {"headers", `'{"Content-Type": "x"}'`, "not allowed"},
		"header name":       {"headers", `'{"a b": "x"}'`, "not allowed"},
		"header bracket":    {"headers", `'{"a]": "x"}'`, "not allowed"},
		"header value":      {"headers", `'{"a": "x\n"}'`, "not allowed"},
		"header NUL":        {"headers", `'{"a": "x\u0000"}'`, "not allowed"},
		"large headers":     {"headers", `'{"a": "' || printf('%.*c', 8192, 'x') || '"}'`, "8 KiB"},
	} {
		columns, values := map[string]string{"topic": `'t'`, "type": `'T'`, "payload": `''`}, []string{}
		columns[c.columns] = c.values
		var namesOf []string
		for name, value := range columns {
			namesOf, values = append(namesOf, name), append(values, value)
		}
		_, err := f.db.ExecContext(t.Context(), names{testPrefix}.sql(
			`INSERT INTO outbox_messages (`+strings.Join(namesOf, ", ")+`) VALUES (`)+strings.Join(values, ", ")+`)`)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	for _, text := range []string{`UPDATE outbox_messages SET topic = 'x'`, `UPDATE outbox_audit SET actor = 'x'`, `DELETE FROM outbox_audit`} {
		f.exec(t, `INSERT INTO outbox_audit (actor, action, sink) VALUES ('a', 'b', 'c')`)
		if _, err := f.db.ExecContext(t.Context(), names{testPrefix}.sql(text)); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v", text, err)
		}
	}
	f.exec(t, `INSERT INTO outbox_messages (topic, type, payload, headers) VALUES ('t', 'T', '', '{"a": "x\\u0000\t", "B!~": "ü"}')`) // a backslash, no NUL
}

// A number below a cursor would be passed over: SQLite forgets its numbers when somebody empties sqlite_sequence.
func TestForgottenNumbersAreNoticed(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	f.fill(t, 3)
	f.drain(t, newNoop(true, 3))
	f.exec(t, `DELETE FROM outbox_messages`)
	f.exec(t, `DELETE FROM sqlite_sequence`)
	_, err := f.db.ExecContext(t.Context(), names{testPrefix}.sql(`INSERT INTO outbox_messages (topic, type, payload) VALUES ('t', 'T', '')`))
	if err == nil || !strings.Contains(err.Error(), "seq lies below") {
		t.Errorf("a producer: %v", err)
	}
	sink := one[string](t, f, `SELECT sink FROM outbox_partitions`)
	s := f.store(t)
	t.Cleanup(func() { _ = s.Close() })
	session, err := s.Join(t.Context(), aRelay(), store.Sink{Name: sink})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Renew(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := session.Read(t.Context(), aRoom); !errors.Is(err, store.ErrLineageChanged) {
		t.Errorf("a relay: %v, want ErrLineageChanged", err)
	}
}

// The shell and other languages bring SQLite libraries of their own, older ones too.
func TestOtherProgramsAreProducers(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	table := names{testPrefix}.sql("outbox_messages")
	insert := `INSERT INTO ` + table + ` (topic, type, partition_key, payload, headers) VALUES ('orders', 'OrderPaid', 'k', '{}', '{"a": "b"}')`
	programs := map[string][]string{
		"sqlite3": {f.path, insert},
		"python3": {"-c", `import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit()`, f.path, insert},
	}
	ran := 0
	for name, args := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Logf("not tested: there is no %s", name)
			continue
		}
		if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		ran++
	}
	if n := one[int](t, f, `SELECT count(DISTINCT id) FROM outbox_messages`); n != ran {
		t.Errorf("%d messages, want %d", n, ran)
	}
	if ran > 0 {
		f.drain(t, newNoop(false, ran))
	}
}

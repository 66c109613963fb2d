package cli

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/cmd/onward/internal/golden"
)

// paused adds pauses as somebody made them a day ago.
func (d *database) paused(t *testing.T) {
	t.Helper()
	d.exec(t, `INSERT INTO outbox_pauses (sink, kind, name, reason, actor, created_at, expires_at) VALUES
		('orders', 'key', 'order-2', 'the customer asked', 'ann', $1, NULL), ('orders', 'topic', 'invoices.*', 'wrong VAT', 'bob', $1, '9999-12-31 23:59:59+00'),
		('orders', 'sink', '', 'the broker moves', 'ann', $1, '2999-01-31 10:00:00+00'), ('orders', 'topic', 'over', 'long ago', 'ann', $1, $2)`,
		now.Add(-24*time.Hour), now.Add(-23*time.Hour))
	d.exec(t, `INSERT INTO outbox_parked (sink, place, partition_id, partition_key, seq, txid, id, topic, type, payload, content_type, headers, scope,
		correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at, reason, due_at, pause)
		SELECT 'orders', seq, partition_id, partition_key, seq, txid, id, topic, type, payload, content_type, headers, scope,
		correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at, 'paused', 'infinity',
		(SELECT id FROM outbox_pauses WHERE kind = 'sink') FROM outbox_messages WHERE id = $1`, id(1))
}

func TestPauses(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	d.paused(t)
	golden.Compare(t, "pauses", alike(d.sessions(t,
		"pauses list", "pauses list -o json", "pauses list -o jsonl -q", "pauses list --sink nothing", "status", "status -o json",
		"messages show "+id(1), "messages show "+id(1)+" -o json", "messages show "+id(3), "messages show "+id(7), "messages list --reason paused",
		"pause sink nothing --reason x", "pause sink orders", "pause key order-1 --reason x --for soon", "pause key order-1 --reason x --until tomorrow",
		"pause key order-1 --reason x --until 2026-01-01", "pause key order-1 --reason x --for 2h --until 2999-01-01", "pause topic a.>.b --reason x",
		"pause topic", "pause message x", "pause key order-1 --reason x --sink=", "pause key order-1 --reason x --for=", "resume key order-9", "resume sink nothing")))
}

func TestKeys(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	d.exec(t, `UPDATE outbox_parked SET due_at = '2999-01-31 10:00:00+00' WHERE due_at IS NOT NULL`)
	looks := []string{"keys list --blocked", "keys list --limit 1", "keys list -o json", "keys list -o jsonl -q", "keys show order-2", "keys show order-3", "keys show order-1"}
	golden.Compare(t, "keys", alike(d.sessions(t, append(looks, "keys show order-3 -o json", "keys show nobody", "keys list --sink nothing", "keys list --limit 0",
		"keys list --after nowhere", "keys show")...)))
	d.paused(t)
	golden.Compare(t, "keys-paused", alike(d.sessions(t, append(looks, "keys show order-2 -o jsonl")...)))
}

var aTime = regexp.MustCompile(`20[0-9]{2}-[0-9-]+[ T][0-9:.]+Z?`)

// What people do: pause, once more with another end, and resume.
func TestPausingAndResuming(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	text := d.sessions(t,
		"pause key order-2 --reason audit --dry-run", "pause key order-2 --reason audit", "pause topic invoices.* --reason VAT --for 3d -o json", "pause sink orders --reason moving --until 2999-01-31",
		"pause key order-2 --sink orders --reason again --for 90m -q", "resume key order-2 --dry-run", "resume key order-2 --reason done", "resume topic invoices.* -o jsonl", "resume sink orders", "pauses list")
	golden.Compare(t, "pausing", gaps.ReplaceAllString(strings.ReplaceAll(aTime.ReplaceAllString(text, "TIME"), actor(), "USER"), "  "))
	want := "pause order-2 audit, pause invoices.* VAT, pause  moving, pause order-2 again, resume order-2 done, resume invoices.* , resume  "
	if got := one[string](t, d, `SELECT string_agg(action || ' ' || (detail ->> 'name') || ' ' || reason, ', ' ORDER BY id) FROM outbox_audit`); got != want {
		t.Errorf("the audit says %q, want %q", got, want)
	}
	d.run(t, "pause", "key", "a", "--reason", "x", "--for", "90m")
	left := one[float64](t, d, `SELECT extract(epoch FROM expires_at - created_at)::float8 FROM outbox_pauses WHERE name = 'a'`)
	if left < 89*60 || left > 91*60 {
		t.Errorf("--for 90m lasts %v s", left)
	}
}

// With several sinks, a topic or a key is paused in the one that is named.
func TestAPauseNamesItsSink(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	d.secondSink(t)
	if r := d.run(t, "pause", "key", "order-1", "--reason", "x"); r.code != exitUsage || !strings.Contains(r.err, "audit, old, orders") {
		t.Errorf("without --sink: %+v", r)
	}
	if r := d.run(t, "pause", "key", "order-1", "--reason", "x", "--sink", "audit"); r.code != exitDone {
		t.Errorf("with --sink: %+v", r)
	}
	if r := d.run(t, "pauses", "list", "--sink", "orders", "-o", "json", "-q"); r.code != exitDone || strings.TrimSpace(strings.Join(strings.Fields(r.out), "")) != `{"pauses":[]}` {
		t.Errorf("pauses of the other sink: %+v", r)
	}
	r := d.run(t, "pauses", "list", "-o", "json", "-q")
	var list struct {
		Pauses []struct{ Sink, Kind, Name, Reason, Actor string }
	}
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list.Pauses) != 1 || list.Pauses[0].Sink != "audit" || list.Pauses[0].Actor != actor() {
		t.Errorf("pauses: %+v, %v", list, err)
	}
}

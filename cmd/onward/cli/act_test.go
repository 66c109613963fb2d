package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/onwardhq/onward/cmd/onward/internal/golden"
)

// dueNow is when a message that was just requeued is due.
var dueNow = regexp.MustCompile(`due 20[0-9: -]+ UTC`)

// states reads where the messages of the story stand.
func (d *database) states(t *testing.T, numbers ...int) string {
	t.Helper()
	var all []string
	for _, n := range numbers {
		r := d.run(t, "messages", "list", "--id", id(n), "-o", "jsonl", "-q")
		var m struct {
			States []struct{ State, Reason string }
		}
		if err := json.Unmarshal([]byte(r.out), &m); err != nil || len(m.States) != 1 {
			t.Fatalf("message %d: %+v", n, r)
		}
		all = append(all, strings.TrimSuffix(m.States[0].State+" "+m.States[0].Reason, " "))
	}
	return strings.Join(all, ", ")
}

func TestRequeueingOne(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	text := d.sessions(t,
		"dead requeue "+id(4)+" --dry-run", "dead requeue "+id(4), "dead requeue "+id(4), "dead requeue "+id(1), "dead requeue "+id(9),
		"dead requeue "+id(6)+" -o json", "dead list",
	)
	golden.Compare(t, "requeue", dueNow.ReplaceAllString(text, "due NOW"))
	if got := d.states(t, 4, 5, 6); got != "parked retry, parked behind, parked retry" {
		t.Errorf("the messages are %s", got)
	}
}

func TestDiscardingOne(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	var text strings.Builder
	for _, command := range [][]string{
		{"dead", "discard", id(4)},
		{"dead", "discard", id(4), "--reason", "INC-42", "--dry-run"},
		{"dead", "discard", id(4), "--reason", "INC-42"},
		{"dead", "discard", id(4), "--reason", "INC-42"},
		{"dead", "discard", id(2), "--reason", "a parked one, -o jsonl", "-o", "jsonl"},
		{"messages", "list"},
	} {
		text.WriteString(session(command, d.run(t, command...)))
	}
	golden.Compare(t, "discard", text.String())
	if got := one[string](t, d, `SELECT string_agg(action || ' ' || reason || ' ' || (actor <> ''), '; ' ORDER BY id) FROM outbox_audit`); got != "discard INC-42 true; discard a parked one, -o jsonl true" {
		t.Errorf("the audit says %q", got)
	}
}

// More than one message: only after a yes, or with --yes; where nobody can answer it is refused, and nothing is done.
func TestManyAreConfirmed(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	all := []string{"dead", "requeue", "--sink", "orders"}
	untouched := func(what string, r ran, code int, words string) {
		t.Helper()
		if r.code != code || !strings.Contains(r.err, words) {
			t.Errorf("%s: got %+v, want code %d and %q", what, r, code, words)
		}
		if got := d.states(t, 4, 6); got != "dead, dead" {
			t.Errorf("%s: the messages are %s", what, got)
		}
	}
	untouched("nobody there", d.run(t, all...), exitRefused, "--yes")
	untouched("two ids", d.run(t, "dead", "requeue", id(4), id(6)), exitRefused, "onward/confirmation-required")
	untouched("a dry run", d.run(t, append(all, "--dry-run")...), exitDone, "2 messages would be requeued\n")
	person := d.console
	person.asks = true
	for _, answer := range []string{"n\n", "", "\n", "maybe\n"} {
		person.in = answer
		untouched(fmt.Sprintf("answer %q", answer), person.run(t, all...), exitRefused, "Requeue 2 messages? [y/N]")
	}
	person.in = "y\n"
	if r := person.run(t, all...); r.code != exitDone || d.states(t, 4, 6) != "parked retry, parked retry" {
		t.Errorf("answer y: %+v, the messages are %s", r, d.states(t, 4, 6))
	}
	if r := d.run(t, append(all, "--yes")...); r.code != exitDone || !strings.Contains(r.err, "no dead letter matches") {
		t.Errorf("nothing is left: %+v", r)
	}
}

// What one message refuses does not stop the others, and is said.
func TestManyAreActedUponOneByOne(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	// a second dead letter of order-1, behind which another one was published
	d.exec(t, `DELETE FROM outbox_parked WHERE id = $1`, id(2))
	d.exec(t, `INSERT INTO outbox_dead SELECT 'orders', id, partition_id, partition_key, seq, seq, txid, topic, type, payload, content_type, headers, scope,
		correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at, false, 'onward/rejected', '', 3, now(), now(), 'r'
		FROM outbox_messages WHERE id = $1`, id(2))
	d.exec(t, `DELETE FROM outbox_parked WHERE id = $1`, id(3))
	text := d.sessions(t,
		"dead requeue --code rejected --yes --rate 1000",
		"dead requeue "+id(2),
		"dead requeue "+id(2)+" --accept-reorder",
		"dead discard --topic orders --reason all --yes --limit 1",
	)
	golden.Compare(t, "requeue-many", text)
	if got := d.states(t, 2, 4, 6); got != "parked retry, parked retry, parked retry" {
		t.Errorf("the messages are %s", got)
	}
}

// The oldest go first, and --limit keeps the oldest.
func TestLimitTakesTheOldest(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	r := d.run(t, "dead", "requeue", "--sink", "orders", "--limit", "1")
	if r.code != exitDone || !strings.Contains(r.err, "more than 1 match") {
		t.Errorf("got %+v", r)
	}
	if got := d.states(t, 4, 6); got != "parked retry, dead" {
		t.Errorf("the messages are %s", got)
	}
}

// Ids are acted upon oldest first as well, whatever their order; one that cannot be does not stop the others.
func TestIDsAreActedUponOneByOne(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	text := d.sessions(t,
		"dead requeue "+id(6)+" "+id(4)+" --dry-run -o jsonl --rate 2000000000",
		"dead requeue "+id(6)+" "+id(9)+" "+id(1)+" --sink orders",
		"dead discard "+id(9)+" "+id(5)+" "+id(4)+" --reason INC-42 --yes",
	)
	golden.Compare(t, "ids", text)
	if got := d.states(t, 4, 5, 6); got != "discarded, discarded, parked retry" {
		t.Errorf("the messages are %s", got)
	}
}

// An empty variable of a script selects nothing, rather than everything.
func TestAnEmptyFilterIsRefused(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	for _, name := range actFilters {
		if name == "attempts" {
			continue
		}
		r := d.run(t, "dead", "discard", "--reason", "x", "--yes", "--"+name, "")
		if r.code != exitUsage || !strings.Contains(r.err, "--"+name+" is empty") {
			t.Errorf("%s: got %+v", name, r)
		}
	}
	if got := d.states(t, 4, 6); got != "dead, dead" {
		t.Errorf("the messages are %s", got)
	}
}

// Tables of another version are looked at, with a warning, and not changed.
func TestAnotherVersionIsLookedAtAndNotChanged(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	for version, want := range map[string]struct{ code, hint string }{
		"1": {"onward/schema-old", "`onward migrate up`"}, "99": {"onward/schema-new", "newer onward"},
	} {
		d.exec(t, `UPDATE outbox_meta SET value = $1 WHERE name = 'schema'`, version)
		for _, look := range []string{"status", "dead list", "messages list", "relays list", "partitions list", "dead show " + id(4)} {
			r := d.run(t, strings.Fields(look)...)
			if r.code != exitDone || r.out == "" || !strings.Contains(r.err, "warning: ") || !strings.Contains(r.err, want.code) || !strings.Contains(r.err, want.hint) {
				t.Errorf("version %s, %s: got %+v", version, look, r)
			}
		}
		for _, act := range []string{"dead requeue " + id(4), "dead discard --sink orders --reason x --yes"} {
			r := d.run(t, strings.Fields(act)...)
			if r.code != exitUsage || !strings.Contains(r.err, "error: ") || !strings.Contains(r.err, want.code) || !strings.Contains(r.err, want.hint) {
				t.Errorf("version %s, %s: got %+v", version, act, r)
			}
		}
	}
	if got := d.states(t, 4, 6); got != "dead, dead" {
		t.Errorf("the messages are %s", got)
	}
}

package cli

import (
	"strings"
	"testing"
)

func TestMigrating(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	has := func(what string, r ran, code int, words ...string) {
		t.Helper()
		if r.code != code {
			t.Errorf("%s: got %+v, want code %d", what, r, code)
		}
		for _, w := range words {
			if !strings.Contains(r.out+r.err, w) {
				t.Errorf("%s: got %+v, want %q", what, r, w)
			}
		}
	}
	has("status before", d.run(t, "migrate", "status"), exitDone, "0001_outbox", "`onward migrate up`")
	has("validate before", d.run(t, "migrate", "validate"), exitUsage, "onward/schema-missing", "onward migrate up")
	has("a list before", d.run(t, "messages", "list"), exitUsage, "onward/schema-missing", "onward migrate up")
	has("no power of two", d.run(t, "migrate", "up", "--partitions", "3"), exitUsage, "power of two")
	has("up", d.run(t, "migrate", "up", "--partitions", "8"), exitDone, "0001_outbox (locks: ", "8 partitions")
	has("up again", d.run(t, "migrate", "up"), exitDone, "up to date")
	has("another number", d.run(t, "migrate", "up", "--partitions", "16"), exitUsage, "8 partitions, not 16")
	has("status after", d.run(t, "migrate", "status", "-o", "json"), exitDone, `"pending": []`, `"partitions": 8`)
	has("validate after", d.run(t, "migrate", "validate"), exitDone, "a relay can start")
	has("status of the empty outbox", d.run(t, "status"), exitDone, "no sink yet")
	has("status as JSON", d.run(t, "status", "-o", "json"), exitDone, `"sinks": []`)
	d.exec(t, `UPDATE outbox_meta SET value = '1' WHERE name = 'schema'`)
	has("an old schema", d.run(t, "migrate", "validate"), exitUsage, "onward/schema-old", "onward migrate up")
	d.exec(t, `UPDATE outbox_meta SET value = '999' WHERE name = 'schema'`)
	has("a new schema", d.run(t, "migrate", "validate"), exitUsage, "onward/schema-new")
	has("up to an older version", d.run(t, "migrate", "up"), exitUsage, "onward/schema-new")
}

func TestMigratePrintNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	r := console{}.run(t, "migrate", "print", "--set", "database.schema=shop", "--set", "database.table_prefix=ob_", "--partitions", "16")
	if r.code != exitDone || r.err != "" || !strings.Contains(r.out, `"shop".ob_messages`) || strings.Contains(r.out, "outbox_messages") {
		t.Errorf("code %d, stderr %q, %.300s", r.code, r.err, r.out)
	}
	if r := (console{}).run(t, "migrate", "print", "--grants"); r.code != exitDone || !strings.Contains(r.out, "onward_viewer") {
		t.Errorf("got %+v", r)
	}
}

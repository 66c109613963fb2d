package cli

import (
	"encoding/json"
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
	has("status before", d.run(t, "migrate", "status"), exitDone, "0001_outbox", "pending", "`onward migrate up`")
	has("validate before", d.run(t, "migrate", "validate"), exitUsage, "onward/schema-missing", "onward migrate up")
	has("a list before", d.run(t, "messages", "list"), exitUsage, "onward/schema-missing", "onward migrate up")
	has("no power of two", d.run(t, "migrate", "up", "--partitions", "3"), exitUsage, "power of two")
	has("up", d.run(t, "migrate", "up", "--partitions", "8"), exitDone, "0001_outbox (locks: ", "8 partitions")
	has("up again", d.run(t, "migrate", "up"), exitDone, "up to date")
	has("another number", d.run(t, "migrate", "up", "--partitions", "16"), exitUsage, "8 partitions, not 16")
	has("status after", d.run(t, "migrate", "status", "-o", "json"), exitDone, `"pending": []`, `"partitions": 8`, `"name": "functions"`)
	has("status after, as a table", d.run(t, "migrate", "status"), exitDone, "0003_repair     applied")
	has("validate after", d.run(t, "migrate", "validate"), exitDone, "a relay can start")
	has("status of the empty outbox", d.run(t, "status"), exitDone, "no sink yet")
	has("status as JSON", d.run(t, "status", "-o", "json"), exitDone, `"sinks": []`)
	d.exec(t, `UPDATE outbox_meta SET value = '1' WHERE name = 'schema'`)
	has("an old schema", d.run(t, "migrate", "validate"), exitUsage, "onward/schema-old", "onward migrate up")
	d.exec(t, `UPDATE outbox_meta SET value = '999' WHERE name = 'schema'`)
	has("a new schema", d.run(t, "migrate", "validate"), exitUsage, "onward/schema-new")
	has("up to an older version", d.run(t, "migrate", "up"), exitUsage, "onward/schema-new")
}

func TestMigrateRefusesPartitionsThatAreNone(t *testing.T) {
	t.Parallel()
	for _, n := range []string{"3", "32768", "-1"} {
		for _, verb := range []string{"up", "print"} {
			c := console{environ: []string{"ONWARD_DATABASE__URL=postgres://nobody@127.0.0.1:1/none"}} // it is not asked
			if r := c.run(t, "migrate", verb, "--partitions", n); r.code != exitUsage || !strings.Contains(r.err, "power of two up to 16384") {
				t.Errorf("%s, %s partitions: %+v", verb, n, r)
			}
		}
	}
	if r := (console{}).run(t, "migrate", "print", "--partitions", "16384"); r.code != exitDone || !strings.Contains(r.out, "& (16384 - 1)") {
		t.Errorf("code %d, %s", r.code, r.err)
	}
}

func TestValidateListsWhatIsBrokenAndHowToRepairIt(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, `ALTER SEQUENCE outbox_messages_seq_seq CACHE 20`)
	d.exec(t, `DROP INDEX outbox_messages_txid_seq`)
	r := d.run(t, "migrate", "validate")
	for _, w := range []string{"sequence " + d.prefix + "messages_seq_seq", "CACHE 20", "ALTER SEQUENCE", "index " + d.prefix + "messages_txid_seq", "is missing", "CREATE INDEX CONCURRENTLY"} {
		if !strings.Contains(r.out, w) {
			t.Errorf("stdout %q, want %q", r.out, w)
		}
	}
	if r.code != exitFailed || !strings.Contains(r.err, "onward/schema-changed") || !strings.Contains(r.err, "REPAIR") {
		t.Errorf("code %d, stderr %q", r.code, r.err)
	}
	var found struct {
		Faults []struct{ Object, Problem, Repair string }
	}
	r = d.run(t, "migrate", "validate", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &found); err != nil || len(found.Faults) != 2 || r.code != exitFailed {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, f := range found.Faults { // as it says
		if _, err := d.pool.Exec(t.Context(), f.Repair); err != nil {
			t.Errorf("%s: %v", f.Repair, err)
		}
	}
	if r := d.run(t, "migrate", "validate"); r.code != exitDone || !strings.Contains(r.err, "a relay can start") {
		t.Errorf("repaired: %+v", r)
	}
	if r := d.run(t, "migrate", "validate", "-o", "json"); r.code != exitDone || !strings.Contains(r.out, `"faults": []`) {
		t.Errorf("repaired: %+v", r)
	}
}

func TestMigrateGrantsToRolesOfAnyName(t *testing.T) {
	t.Parallel()
	r := console{}.run(t, "migrate", "print", "--grants", "--role", "producer=Order service", "--role", "viewer=support")
	if r.code != exitDone || !strings.Contains(r.out, `GRANT USAGE ON SCHEMA "public" TO "Order service", onward_relay, onward_admin, "support";`) || strings.Contains(r.out, "onward_producer") {
		t.Errorf("%+v", r)
	}
	for _, bad := range []string{"reader=x", "viewer=", "Viewer=x"} {
		if r := (console{}).run(t, "migrate", "print", "--grants", "--role", bad); r.code != exitUsage || !strings.Contains(r.err, "producer=NAME") {
			t.Errorf("%s: %+v", bad, r)
		}
	}
	d := newDatabase(t)
	none := []string{"migrate", "up", "--grants"}
	for _, part := range []string{"producer", "relay", "admin", "viewer"} { // the server's own roles are others' business
		none = append(none, "--role", part+"=nobody_"+d.schema)
	}
	if r := d.run(t, none...); r.code != exitUsage || !strings.Contains(r.err, "nobody_") || !strings.Contains(r.err, "create the roles first") {
		t.Errorf("%+v", r)
	}
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

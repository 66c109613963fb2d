package cli

import (
	"os"
	"strings"
	"testing"
)

// Through PgBouncer in transaction mode the program says which setting it needs, and works with it.
func TestThroughAPooler(t *testing.T) {
	t.Parallel()
	url := os.Getenv("ONWARD_TEST_PGBOUNCER_URL")
	if url == "" {
		t.Skip(`ONWARD_TEST_PGBOUNCER_URL is not set: start the servers with: dev/services up && eval "$(dev/services env)"`)
	}
	d := emptyDatabase(t)
	direct := strings.TrimPrefix(d.environ[0], "ONWARD_DATABASE__URL=")
	d.environ = append(d.environ, "ONWARD_DATABASE__URL="+url, "ONWARD_DATABASE__LISTEN_URL="+direct,
		"ONWARD_SINKS__0__NAME=s", "ONWARD_SINKS__0__URL=discard:")
	const hint = "set database.prepared_statements to false"
	for _, command := range [][]string{{"status"}, {"relay"}} { // migrate uses one connection, for which it may go well
		if r := d.run(t, command...); r.code == 0 || !strings.Contains(r.err, hint) {
			t.Errorf("%v without the setting: exit %d\n%s", command, r.code, r.err)
		}
	}
	d.environ = append(d.environ, "ONWARD_DATABASE__PREPARED_STATEMENTS=false")
	if r := d.run(t, "migrate", "up"); r.code != 0 {
		t.Fatalf("migrate: %s", r.err)
	}
	d.exec(t, `INSERT INTO outbox_messages (topic, type, payload) SELECT 't', 'T', 'x' FROM generate_series(1, 100)`)
	relay := d.start(t, "relay")
	eventually(t, "the relay publishes through the pooler", func() bool {
		r := d.run(t, "status", "--output", "json")
		return r.code == 0 && strings.Contains(strings.ReplaceAll(r.out, " ", ""), `"published":100`)
	})
	if code := relay.end(t); code != 0 {
		t.Errorf("the relay ended with %d\n%s", code, relay.said())
	}
	if r := d.run(t, "messages", "list"); r.code != 0 || strings.Count(r.out, "published") == 0 {
		t.Errorf("messages list: %d\n%s%s", r.code, r.out, r.err)
	}
}

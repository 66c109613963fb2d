package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/store"
)

// What happened to the server is said for a day, in words.
func TestStatusSaysForADayWhatHappenedToTheServer(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		what   string
		ago    time.Duration
		status store.Status
		want   string
	}{
		{"another life", 2 * time.Hour, store.Status{Reborn: now}, "2h0m ago the database's server was found to have crashed or to have been promoted or restored"},
		{"a copy", 2 * time.Hour, store.Status{Rebased: &store.Rebased{At: now, Found: []string{"sign one", "sign two"}, Again: 7, Floor: 99}}, "7 messages may come again"},
		{"long ago", 25 * time.Hour, store.Status{Reborn: now, Rebased: &store.Rebased{At: now}}, ""},
		{"nothing", 0, store.Status{}, ""},
	} {
		var said bytes.Buffer
		a := &app{env: Environment{Err: &said}}
		c.status.Now, c.status.Lineage = now.Add(c.ago), "5"
		a.sayLineage(&c.status)
		if got := said.String(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) || c.want != "" && !strings.Contains(got, "lineage 5") {
			t.Errorf("%s: said %q, want %q", c.what, got, c.want)
		}
		if c.status.Rebased != nil && c.want != "" && !strings.Contains(said.String(), "up to number 99 are of that server): sign one; sign two") {
			t.Errorf("%s: said %q", c.what, said.String())
		}
	}
}

// database.publish_when reaches the store: this server has no synchronous standby, which only replicated asks for.
func TestPublishWhenReachesTheStore(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.environ = append(d.environ, "ONWARD_SINKS__0__NAME=s", "ONWARD_SINKS__0__URL=discard:", "ONWARD_DATABASE__PUBLISH_WHEN=replicated")
	r := d.run(t, "relay")
	if r.code != exitUsage || !strings.Contains(r.err, "synchronous_standby_names is empty") || !strings.Contains(r.err, "hint: set synchronous_standby_names, or database.publish_when to flushed") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}

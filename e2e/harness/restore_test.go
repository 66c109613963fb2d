package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// disaster is a scene whose server will be gone for good, with relays and writers behind a proxy.
type disaster struct {
	*scene
	server *Server // that the proxy leads to
	proxy  *Proxy
	stop   context.CancelFunc
	done   chan error
	beside time.Duration // of its faults
}

// beforeTheDisaster starts relays and writers on a server with these settings.
func beforeTheDisaster(t *testing.T, seed uint64, settings ...string) *disaster {
	t.Helper()
	d := &disaster{beside: 15 * time.Second, done: make(chan error, 1)}
	d.server = server(t, func(dir string) (*Server, error) { return NewPostgres(dir, settings...) }, "ONWARD_TEST_POSTGRES_BIN")
	var err error
	if d.proxy, err = NewProxy(t.Context(), d.server.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.proxy.Close)
	d.scene = openOn(t, d.proxy.URL, needed(t, "ONWARD_TEST_NATS_URL"), 16, &Workload{Keys: 100, Writers: 4, Payload: 64, Pause: 2 * time.Millisecond, Hold: 5 * time.Millisecond, Seed: seed})
	for _, name := range []string{"one", "two"} {
		d.start(RelayConfig{Name: name, Lease: 2 * time.Second, Window: 100})
	}
	d.write()
	d.more(300)
	return d
}

// write lets writers work until rest.
func (d *disaster) write() {
	ctx, stop := context.WithCancel(d.t.Context())
	d.stop, d.work.Messages = stop, 0
	go func() { d.done <- d.work.Run(ctx) }()
}

func (d *disaster) rest() {
	d.t.Helper()
	d.stop()
	d.must(<-d.done)
}

// more waits until n more messages have arrived.
func (d *disaster) more(n int) {
	d.t.Helper()
	d.must(d.collector.WaitFor(d.t.Context(), d.collector.Distinct()+n, 30*time.Second))
}

// others replaces the relays by new ones.
func (d *disaster) others() {
	d.t.Helper()
	for _, name := range []string{"one", "two"} {
		d.must(d.relays[name].Signal(syscall.SIGTERM))
		d.must(d.relays[name].Wait(30 * time.Second))
		d.start(d.configs[name])
	}
	d.registered("one", "two")
}

// replace kills the server and leads everybody to another one, which runs. Relays and writers go on.
func (d *disaster) replace(other *Server) {
	d.t.Helper()
	d.fault("killed", "postgres")
	d.must(d.server.Kill())
	d.must(d.proxy.Switch(other.URL))
	d.fault("restored", "postgres")
	d.server = other
	d.more(200)
	d.rest()
}

// restored starts a server and waits until it has ended its recovery. It says how many messages it has.
func (d *disaster) restored(t *testing.T, s *Server) (messages int) {
	t.Helper()
	t.Cleanup(func() { _ = s.Stop(syscall.SIGKILL) })
	d.must(s.Start(t.Context()))
	conn, err := pgx.Connect(t.Context(), s.URL)
	d.must(err)
	defer func() { _ = conn.Close(context.Background()) }()
	for recovering := true; recovering; pause(t.Context(), 10*time.Millisecond) {
		d.must(t.Context().Err())
		d.must(conn.QueryRow(t.Context(), `SELECT pg_is_in_recovery()`).Scan(&recovering))
	}
	d.must(conn.QueryRow(t.Context(), fmt.Sprintf(`SELECT count(*)::int FROM %q.ledger`, d.schema)).Scan(&messages))
	return messages
}

// written is how many messages the database has.
func (d *disaster) written() (n int) {
	d.t.Helper()
	d.must(d.pool.QueryRow(d.t.Context(), fmt.Sprintf(`SELECT count(*)::int FROM %q.ledger`, d.schema)).Scan(&n))
	return n
}

// everything that the restored database has must arrive, and later messages alone. What the lost one alone had went out: without
// that the run would show little.
func (d *disaster) everything() {
	d.t.Helper()
	v := d.survived(d.beside)
	if v.Phantom == 0 {
		d.t.Error("nothing had gone out of what was lost")
	}
	d.goesOn(v, d.beside)
}

// A base backup that was taken under load is restored on another server while relays run.
func TestARestoredBaseBackupLosesNothingThatItHas(t *testing.T) {
	t.Parallel()
	d := beforeTheDisaster(t, 31)
	backup, err := TakeBackup(t.TempDir(), d.server.URL)
	d.must(err)
	d.more(300)
	other, err := backup.Restore(t.TempDir())
	d.must(err)
	d.restored(t, other)
	d.replace(other)
	d.everything()
	d.reborn()
}

// A server is restored to a point in time out of a base backup and the archived log while relays run, and then, because that was
// too early, once more to a later one: who published under an epoch of the first restored server did not under one of the second.
func TestAServerRestoredToAPointInTimeLosesNothingThatItHas(t *testing.T) {
	t.Parallel()
	archive := t.TempDir()
	settings, err := Archived(archive)
	if err != nil {
		t.Fatal(err)
	}
	d := beforeTheDisaster(t, 32, settings...)
	backup, err := TakeBackup(t.TempDir(), d.server.URL)
	d.must(err)
	type point struct {
		at            time.Time
		atLeast, most int // messages that were there
	}
	points := make([]point, 2)
	for i := range points {
		d.more(200)
		p := &points[i]
		p.atLeast = d.written()
		d.must(d.pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&p.at))
		p.most = d.written() + 4*5 // whose transactions were just being committed
	}
	d.more(200)
	d.archived()
	for i, p := range points {
		other, err := backup.RestoreTo(t.TempDir(), archive, p.at)
		d.must(err)
		if n := d.restored(t, other); n < p.atLeast || n > p.most {
			t.Errorf("restored to a time at which there were %d to %d messages, it has %d", p.atLeast, p.most, n)
		}
		if i > 0 {
			d.write()
			d.others()
			d.more(100)
			d.others()
		}
		d.replace(other)
		d.others()
		d.everything()
		d.reborn()
	}
}

// archived waits until what was written so far is in the archive.
func (d *disaster) archived() {
	d.t.Helper()
	var file string
	d.must(d.pool.QueryRow(d.t.Context(), `SELECT pg_walfile_name(pg_switch_wal())`).Scan(&file))
	for done := false; !done; pause(d.t.Context(), 10*time.Millisecond) {
		d.must(d.t.Context().Err())
		d.must(d.pool.QueryRow(d.t.Context(), `SELECT coalesce(last_archived_wal >= $1, false) FROM pg_stat_archiver`, file).Scan(&done))
	}
}

// A dump that was taken under load is restored on a younger server while relays run: its transactions have lower numbers.
func TestARestoredDumpLosesNothingThatItHas(t *testing.T) {
	t.Parallel()
	d := beforeTheDisaster(t, 33)
	_, err := d.pool.Exec(t.Context(), `DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	d.must(err)
	bin, file := os.Getenv("ONWARD_TEST_POSTGRES_BIN"), filepath.Join(t.TempDir(), "dump.sql")
	d.must(runAs(nil, t.TempDir(), filepath.Join(bin, "pg_dump"), "--schema", d.schema, "--file", file, "--dbname", d.server.URL))
	d.more(300)
	other := server(t, func(dir string) (*Server, error) { return NewPostgres(dir) }, "ONWARD_TEST_POSTGRES_BIN")
	d.must(runAs(nil, t.TempDir(), filepath.Join(bin, "psql"), "--no-psqlrc", "--quiet", "--output", os.DevNull, "--set", "ON_ERROR_STOP=1", "--file", file, other.URL))
	d.replace(other)
	d.everything()
	var lineage, rebased string
	d.must(d.pool.QueryRow(t.Context(), fmt.Sprintf(`SELECT (SELECT value FROM %[1]q.outbox_meta WHERE name = 'lineage'), (SELECT value FROM %[1]q.outbox_meta WHERE name = 'rebased')`, d.schema)).Scan(&lineage, &rebased))
	if n := strings.Count(d.log.String(), "this outbox was copied from another server"); rebased == "" || n != 1 || lineage == "1" {
		t.Errorf("lineage %s, rebased %q, %d lines in the logs", lineage, rebased, n)
	}
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// server is a PostgreSQL server of one test's own.
type server struct {
	t    *testing.T
	bin  string
	dir  string
	attr *syscall.SysProcAttr
	port int
	cmd  *exec.Cmd
	url  string
}

const binVariable = "ONWARD_TEST_POSTGRES_BIN"

func newServer(t *testing.T) *server {
	t.Helper()
	s := emptyServer(t)
	s.run("initdb", "-D", s.data(), "-U", "onward", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
	return s
}

// standby makes a standby of the server, which it follows over a slot of this name.
func (s *server) standby(name string) *server {
	s.t.Helper()
	b := emptyServer(s.t)
	b.run("pg_basebackup", "-d", s.url+"&application_name="+name, "-D", b.data(), "-R", "-C", "-S", name, "-c", "fast", "-X", "stream", "--no-sync")
	return b
}

var portsGiven atomic.Int64

// emptyServer has a folder and a port, and no data yet.
func emptyServer(t *testing.T) *server {
	t.Helper()
	bin := os.Getenv(binVariable)
	if bin == "" {
		t.Skip(binVariable + ` is not set: it is the folder of initdb and postgres, see dev/services`)
	}
	dir := t.TempDir()
	s := &server{t: t, bin: bin, dir: dir, attr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}}
	if os.Getuid() == 0 { // PostgreSQL does not run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32)
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		s.attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: true}
		for d := dir; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil { // it must reach its folder
				t.Fatal(err)
			}
		}
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
	}
	// Below the range of outgoing connections: it must be free again when the server starts a second time.
	for s.port = 15000 + (os.Getpid()+int(portsGiven.Add(1)))%5000; ; s.port++ {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.port)); err == nil {
			_ = l.Close()
			break
		}
	}
	s.url = fmt.Sprintf("postgres://onward@127.0.0.1:%d/postgres?sslmode=disable", s.port)
	t.Cleanup(s.stop)
	return s
}

func (s *server) data() string { return filepath.Join(s.dir, "data") }

func (s *server) run(program string, args ...string) {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(s.bin, program), args...)
	cmd.SysProcAttr, cmd.Dir = s.attr, s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

// start starts the server with these settings besides, and waits until it takes connections.
func (s *server) start(settings ...string) {
	s.t.Helper()
	s.launch(settings...)
	pgtest.Eventually(s.t, "the server answers", s.answers)
}

func (s *server) answers() bool {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url)
	return err == nil && conn.Close(ctx) == nil
}

// set changes a setting of the running server.
func (s *server) set(g *rig, setting string) {
	s.t.Helper()
	g.Exec(s.t, `ALTER SYSTEM SET `+setting)
	g.Exec(s.t, `SELECT pg_reload_conf()`)
	name, _, _ := strings.Cut(setting, " ")
	s.t.Cleanup(func() { // before others, who may wait for what it asks for
		for _, sql := range []string{`ALTER SYSTEM RESET ` + name, `SELECT pg_reload_conf()`} {
			if _, err := g.Pool.Exec(context.Background(), sql); err != nil {
				s.t.Error(err)
			}
		}
	})
	pgtest.Eventually(s.t, setting, func() bool {
		return pgtest.One[bool](s.t, g.Pool, `SELECT NOT pending_restart AND setting <> '' FROM pg_settings WHERE name = $1`, name)
	})
}

// launch does not wait.
func (s *server) launch(settings ...string) {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	args := []string{"-D", s.data(), "-p", strconv.Itoa(s.port), "-F"}
	for _, setting := range append(settings, "listen_addresses=127.0.0.1", "unix_socket_directories=") {
		args = append(args, "-c", setting)
	}
	s.cmd = exec.Command(filepath.Join(s.bin, "postgres"), args...)
	s.cmd.SysProcAttr, s.cmd.Dir, s.cmd.Stderr = s.attr, s.dir, log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// rig is an outbox on the server, in the schema public.
func (s *server) rig(partitions int) *rig {
	s.t.Helper()
	pool := pgtest.Connect(s.t, s.url, nil)
	if err := Migrate(s.t.Context(), pool, MigrateConfig{Partitions: partitions}); err != nil {
		s.t.Fatal(err)
	}
	g := &rig{DB: &pgtest.DB{Pool: pool, URL: s.url, Schema: "public", Prefix: "outbox_"}, t: s.t}
	g.store = openStore(s.t, g.DB, pool)
	return g
}

// stop shuts the server down in good order.
func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	_ = s.cmd.Wait()
	s.cmd = nil
}

// A standby is refused at start, and a session whose server has become one reads nothing: a standby's snapshots do not show
// which transactions are open, so late rows would be lost.
func TestAStandbyIsRefused(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.start()
	g := server.rig(4)
	pool := g.Pool
	s := g.join()
	g.write("a", "1")
	wantTexts(t, "from the primary", g.collect(s, 0, 1, 2, 3), []string{"1"})
	g.write("a", "2")

	server.stop()
	if err := os.WriteFile(filepath.Join(server.data(), "standby.signal"), nil, 0o644); err != nil { //nolint:gosec // the server's user reads it
		t.Fatal(err)
	}
	server.start()
	pool.Reset()
	if !pgtest.One[bool](t, pool, `SELECT pg_is_in_recovery()`) {
		t.Fatal("the server is no standby")
	}
	p, err := s.Read(t.Context(), room(s, 10))
	if !errors.Is(err, store.ErrReload) || len(p.Parts) > 0 {
		t.Errorf("read %v from a standby, and the error %v", payloads(p), err)
	}
	if _, err := s.Renew(t.Context(), true); err == nil {
		t.Error("a lease was renewed on a standby")
	}
	_, err = Open(t.Context(), pool, Config{})
	wantUnsupported(t, "Open on a standby", err, "standby", "connect to the primary")
}

// Only UTF8 holds every text as it was written: another encoding is refused, by the migration and by the relay.
func TestADatabaseOfAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	name := pgx.Identifier{db.Schema + "_ascii"}.Sanitize()
	db.Exec(t, `CREATE DATABASE `+name+` ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	t.Cleanup(func() {
		if _, err := db.Pool.Exec(context.Background(), `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	pool := pgtest.Connect(t, db.URL, func(c *pgxpool.Config) { c.ConnConfig.Database = db.Schema + "_ascii" })
	_, open := Open(t.Context(), pool, Config{})
	for what, err := range map[string]error{
		"Open": open, "Migrate": Migrate(t.Context(), pool, MigrateConfig{Partitions: 4}),
	} {
		wantUnsupported(t, what, err, "SQL_ASCII", "ENCODING 'UTF8'")
	}
}

func wantUnsupported(t *testing.T, what string, err error, detail, hint string) {
	t.Helper()
	var e *outbox.Error
	if !errors.Is(err, store.ErrDatabaseUnsupported) || !errors.As(err, &e) || !strings.Contains(e.Detail, detail) || !strings.Contains(e.Hint, hint) {
		t.Errorf("%s: %v; want %q, and a hint with %q", what, err, detail, hint)
	}
}

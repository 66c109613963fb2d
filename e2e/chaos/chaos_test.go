package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onwardhq/onward/leaktest"
)

func TestMain(m *testing.M) {
	Main() // where this process is a writer or a receiver
	code := leaktest.Main(m)
	if dir := builtIn.Load(); dir != nil {
		_ = os.RemoveAll(*dir)
	}
	os.Exit(code)
}

// builtIn is the folder of the program, once a test has asked for it.
var builtIn atomic.Pointer[string]

// built builds the program for all tests: to link it takes seconds.
var built = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "onward-chaos-program-"); err != nil {
		return "", err
	}
	builtIn.Store(&dir)
	return dir, build(context.Background(), filepath.Join(dir, "onward"))
})

// program is onward, built from this work tree.
func program(t *testing.T) string {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "onward")
}

func needed(t *testing.T, variables ...string) {
	t.Helper()
	for _, v := range variables {
		if os.Getenv(v) == "" {
			t.Skip(v + ` is not set: start the servers with: dev/services up && eval "$(dev/services env)"`)
		}
	}
}

// Each pair of a store and a broker goes through 20 seconds of everything that can go wrong, of one seed, so that a failure
// can be tried again: nothing is lost, made up, altered or out of order, and each duplicate has its reason.
func TestPromisesAreKeptWhileEverythingFails(t *testing.T) {
	t.Parallel()
	needed(t, "ONWARD_TEST_POSTGRES_BIN", "ONWARD_TEST_NATS_SERVER")
	onward := program(t)
	for _, pair := range [][2]string{{Postgres, JetStream}, {SQLite, JetStream}, {Postgres, JSONLines}} {
		t.Run(pair[0]+"+"+pair[1], func(t *testing.T) {
			t.Parallel()
			c := Config{Seed: 1, Duration: 20 * time.Second, Store: pair[0], Broker: pair[1], Rate: 200, Program: onward, Dir: t.TempDir(), Progress: t.Output()}
			report, err := Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(report.Verdict)
			if report.OK {
				return
			}
			t.Errorf("%s\n%s", report.Verdict, strings.Join(report.Examples, "\n"))
			kept := filepath.Join(os.TempDir(), fmt.Sprintf("onward-chaos-%s-%s-%d", c.Store, c.Broker, os.Getpid()))
			t.Logf("the report is in %s (%v)", kept, os.CopyFS(kept, os.DirFS(c.Dir)))
		})
	}
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "report")
	for want, c := range map[string]Config{
		"no store":           {Store: "mysql", Broker: JetStream, Dir: dir},
		"no broker":          {Store: Postgres, Broker: "pigeon", Dir: dir},
		"no time for faults": {Store: Postgres, Broker: JetStream, Dir: dir, Duration: time.Second},
		"messages a second":  {Store: Postgres, Broker: JetStream, Dir: dir, Rate: 1},
		"a lease of":         {Store: Postgres, Broker: JetStream, Dir: dir, Lease: time.Hour},
		"needs a folder":     {Store: Postgres, Broker: JetStream},
	} {
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a run that was refused has made its folder")
	}
}

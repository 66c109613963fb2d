package chaos

import (
	"strings"
	"testing"
	"time"
)

// PostgreSQL and Redis through 20 seconds of everything that can go wrong.
func TestPromisesAreKeptWhileRedisFails(t *testing.T) {
	t.Parallel()
	needed(t, "ONWARD_TEST_POSTGRES_BIN", "ONWARD_TEST_REDIS_SERVER")
	kept(t, Redis)
}

// PostgreSQL and an HTTP endpoint through the same.
func TestPromisesAreKeptWhileAnEndpointFails(t *testing.T) {
	t.Parallel()
	needed(t, "ONWARD_TEST_POSTGRES_BIN")
	kept(t, Webhook)
}

// kept runs 20 s on PostgreSQL and a broker.
func kept(t *testing.T, broker string) {
	t.Helper()
	c := Config{Seed: 1, Duration: 20 * time.Second, Store: Postgres, Broker: broker, Rate: 100, Program: program(t), Dir: t.TempDir(), Progress: t.Output()}
	report, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report.Verdict)
	if !report.OK {
		t.Errorf("%s\n%s", report.Verdict, strings.Join(report.Examples, "\n"))
	}
}

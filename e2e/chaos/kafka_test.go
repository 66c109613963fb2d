package chaos

import (
	"strings"
	"testing"
	"time"
)

// PostgreSQL and Kafka through 20 seconds of everything that can go wrong.
func TestPromisesAreKeptWhileKafkaFails(t *testing.T) {
	t.Parallel()
	kafkaFails(t, Kafka)
}

// The same with transactions: a reader of what is committed sees each message once.
func TestNothingComesTwiceWhileKafkaWithTransactionsFails(t *testing.T) {
	t.Parallel()
	kafkaFails(t, KafkaTransactions)
}

func kafkaFails(t *testing.T, broker string) {
	t.Helper()
	needed(t, "ONWARD_TEST_POSTGRES_BIN", "ONWARD_TEST_KAFKA_LIBS")
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

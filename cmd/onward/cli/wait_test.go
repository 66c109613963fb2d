package cli

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A database that is not there for 35 seconds is said when it is missed, every ten seconds, and when it has come.
func TestWaitingForTheDatabaseIsAFewLinesOfLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		start := time.Now()
		err := waitForDatabase(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), 0, func(context.Context) error {
			if time.Since(start) < 35*time.Second {
				return &pgconn.PgError{Code: "57P03", Message: "the database system is starting up"}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		text := log.String()
		for words, n := range map[string]int{"level=WARN": 4, `msg="waiting for the database" error=`: 1, `msg="still waiting for the database" for=`: 3, "answers again": 1} {
			if got := strings.Count(text, words); got != n {
				t.Errorf("%q is there %d times, want %d\n%s", words, got, n, text)
			}
		}
	})
}

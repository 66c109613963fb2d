package cli

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onwardhq/onward/outbox"
)

// A relay that starts before its database asks again this often, and says so at first and then every sayAgain.
const (
	firstWait = 250 * time.Millisecond
	lastWait  = 5 * time.Second
	sayAgain  = 10 * time.Second
)

// waitForDatabase calls f until it succeeds, fails for a reason that waiting does not mend, has failed for all of the patience
// (0: that is endless), or ctx ends.
func waitForDatabase(ctx context.Context, log *slog.Logger, patience time.Duration, f func(ctx context.Context) error) error {
	wait := firstWait
	var since, said time.Time
	for {
		err := f(ctx)
		now := time.Now()
		if err == nil && !since.IsZero() {
			log.Info("the database answers again", "after", now.Sub(since).Round(time.Millisecond))
		}
		if err == nil || ctx.Err() != nil || !mends(err) {
			return err
		}
		switch {
		case since.IsZero():
			since, said = now, now
			log.Warn("waiting for the database", "error", err)
		case patience > 0 && now.Sub(since) >= patience:
			return err
		case now.Sub(said) >= sayAgain:
			said = now
			log.Warn("still waiting for the database", "for", now.Sub(since).Round(time.Second), "error", err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
		wait = min(2*wait, lastWait)
	}
}

// mends reports errors that end by themselves once somebody starts or creates the database. A refused password does not.
func mends(err error) bool {
	if outbox.CodeOf(err) != "" && !unreachable(err) {
		return false
	}
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
		switch pg.Code {
		case "57P03", "57P01", "57P02", // starting up, or shutting down
			"53300", // too many connections
			"3D000": // the database does not exist yet
			return true
		}
		return strings.HasPrefix(pg.Code, "08") && !forgets(pg) // connection exceptions
	}
	return unreachable(err)
}

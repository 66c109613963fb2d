package relay

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// What failed before a session was loaded again may have been another relay's since: it is not waited for, and what fails next
// is said at once.
func TestWhatFailedBeforeAReloadIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	d := newTrouble(slog.New(slog.NewTextHandler(&b, nil)))
	d.reloaded() // at the start
	d.failed("settle", "waiting for the database", errors.New("first"))
	d.reloaded()
	d.answered("renew")
	if strings.Contains(b.String(), "answers again") {
		t.Fatalf("a renewal is not yet a session that lives: %s", b.String())
	}
	d.answered(loadSession)
	if !strings.Contains(b.String(), "answers again") {
		t.Fatalf("the end is not said: %s", b.String())
	}
	b.Reset()
	d.failed("settle", "waiting for the database", errors.New("second"))
	if !strings.Contains(b.String(), `msg="waiting for the database" error=second`) {
		t.Errorf("the next trouble is not said: %s", b.String())
	}
}

package relay_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/memstore"
)

// outage is what a relay lives through: its database does what fault says for 35 seconds, from some time after its start on.
type outage struct {
	start time.Duration
	fault func(memstore.Call) memstore.Fault
}

// log runs the relay in the time of testing/synctest and returns what it said.
func (o outage) log(t *testing.T) (lines []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db, broker := memstore.New(memstore.Config{Partitions: 4}), membroker.New(membroker.Config{})
		var down atomic.Bool
		db.SetFault(func(c memstore.Call) memstore.Fault { // called under the database's lock
			if !down.Load() || c.Op == memstore.OpCommit {
				return memstore.Fault{}
			}
			return o.fault(c)
		})
		var log bytes.Buffer // read when all that write to it have ended
		r, err := relay.New(relay.Config{
			Store: db.Open(nil), Sinks: []relay.Sink{{Name: "test", Publisher: broker.Publisher()}}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		writer := memstore.NewWriter(memstore.WriterConfig{})
		writing := func(d time.Duration) {
			for at := time.Now(); time.Since(at) < d; wait(time.Second) {
				tx := db.Begin()
				m := outbox.Message{Topic: "t", Type: "T", Payload: []byte("x")}
				if _, err := writer.Write(t.Context(), tx, m); err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
			}
		}
		down.Store(o.start == 0)
		go func() { done <- r.Run(ctx) }()
		writing(o.start)
		down.Store(true)
		writing(35 * time.Second)
		down.Store(false)
		writing(20 * time.Second)
		stop()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
		lines = strings.Split(strings.TrimSpace(log.String()), "\n")
	})
	return lines
}

// An outage of the database is said when it begins, every ten seconds with how long it lasts, and when it has ended.
func TestAnOutageOfTheDatabaseIsAFewLinesOfLog(t *testing.T) {
	t.Parallel()
	refused := memstore.Fault{Err: errors.New("connection refused")}
	for _, c := range []struct {
		name  string
		start time.Duration
		fault func(memstore.Call) memstore.Fault
		first string
	}{
		{"from the beginning on", 0, always(refused), "waiting for the database"},
		{"while it runs", 5 * time.Second, always(refused), "waiting for the database"},
		{"that voids the session", 5 * time.Second, always(memstore.Fault{Lost: true}), "loading the session again from the database"},
		{"for reads alone", 5 * time.Second, only(memstore.OpRead, refused), "waiting for the database"},
		{"for settles alone", 5 * time.Second, only(memstore.OpSettle, refused), "waiting for the database"},
		{"for parked messages alone", 5 * time.Second, only(memstore.OpHeads, refused), "waiting for the database"},
		{"that voids the session at each read", 5 * time.Second, only(memstore.OpRead, memstore.Fault{Lost: true}), "loading the session again from the database"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lines := outage{start: c.start, fault: c.fault}.log(t)
			warned, ended := having(lines, "level=WARN"), having(lines, "the database answers again")
			all := strings.Join(lines, "\n")
			if len(warned) != 4 || !strings.Contains(warned[0], `msg="`+c.first+`"`) || !strings.Contains(warned[0], "error=") {
				t.Fatalf("%d warnings, want %q and three more\n%s", len(warned), c.first, all)
			}
			for i, line := range warned[1:] {
				if !strings.Contains(line, "still waiting for the database") || !says(line, " for=", 10*(i+1), 10*(i+1)+6) {
					t.Errorf("after %d s it says %s", 10*(i+1), line)
				}
			}
			if len(ended) != 1 || !says(ended[0], " after=", 33, 41) { // from the first call that failed to the last that was answered
				t.Errorf("the end, after 35 s, is said by %q\n%s", ended, all)
			}
		})
	}
}

// having returns the lines that contain a text.
func having(lines []string, text string) (some []string) {
	for _, line := range lines {
		if strings.Contains(line, text) {
			some = append(some, line)
		}
	}
	return some
}

func always(f memstore.Fault) func(memstore.Call) memstore.Fault {
	return func(memstore.Call) memstore.Fault { return f }
}

func only(op memstore.Op, f memstore.Fault) func(memstore.Call) memstore.Fault {
	return func(c memstore.Call) memstore.Fault {
		if c.Op != op {
			return memstore.Fault{}
		}
		return f
	}
}

// says reports a duration of so many seconds behind a name.
func says(line, name string, least, most int) bool {
	_, rest, _ := strings.Cut(line, name)
	text, _, _ := strings.Cut(rest, " ")
	d, err := time.ParseDuration(text)
	return err == nil && d >= time.Duration(least)*time.Second && d <= time.Duration(most)*time.Second
}

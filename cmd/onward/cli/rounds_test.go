package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/relay"
)

// A reader that does not read must not hold the relay up.
func TestASlowReaderOfRoundsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	reader, writer := io.Pipe() // a write waits for its reader
	a := &app{env: Environment{Out: writer, Now: time.Now}}
	admin, err := serverBackend{d.pool, config.Database{Schema: d.schema, TablePrefix: d.prefix}}.admin()
	if err != nil {
		t.Fatal(err)
	}
	rounds, end := a.writeRounds(admin)
	const many = 2 * mostLines
	handed := make(chan struct{})
	go func() {
		for range many {
			rounds.Round(relay.Round{Sink: "orders"})
		}
		close(handed)
	}()
	select {
	case <-handed:
	case <-time.After(10 * time.Second):
		t.Fatal("a round waits for its reader")
	}
	read := make(chan int)
	go func() {
		lines := json.NewDecoder(reader)
		for n := 0; ; n++ {
			if err := lines.Decode(&roundView{}); err != nil {
				read <- n
				return
			}
		}
	}()
	end()
	_ = writer.Close()
	if n := <-read; n < mostLines || n > mostLines+1 {
		t.Errorf("%d lines were written, want those that there was room for", n)
	}
}

// The log's times are UTC, and its durations are written as people do.
func TestTheLogIsReadable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := newLogger(&out, false, false, config.Log{Level: "info", Format: "auto"})
	r := slog.NewRecord(time.Date(2026, 1, 31, 12, 0, 0, 0, time.FixedZone("", 9*3600)), slog.LevelWarn, "waiting", 0)
	r.Add("lease_ends_in", 14*time.Second)
	if err := log.Handler().Handle(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if want := `{"time":"2026-01-31T03:00:00Z","level":"WARN","msg":"waiting","lease_ends_in":"14s"}` + "\n"; out.String() != want {
		t.Errorf("got %s, want %s", out.String(), want)
	}
}

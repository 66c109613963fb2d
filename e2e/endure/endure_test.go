package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/e2e/harness"
	"github.com/onwardhq/onward/leaktest"
)

func TestMain(m *testing.M) {
	harness.Main() // where this process is a relay
	os.Exit(leaktest.Main(m))
}

func needServers(t *testing.T) {
	t.Helper()
	if os.Getenv("ONWARD_TEST_POSTGRES_URL") == "" || os.Getenv("ONWARD_TEST_NATS_URL") == "" {
		t.Skip(`no servers: start them with: dev/services up && eval "$(dev/services env)"`)
	}
}

// endured runs the command and returns its report as it was written.
func endured(t *testing.T, args ...string) report {
	t.Helper()
	needServers(t)
	file := filepath.Join(t.TempDir(), "report.json")
	var out, words bytes.Buffer
	code := run(t.Context(), append(args, "-report", file), &out, &words)
	t.Logf("%s%s", &out, &words)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 1 {
		t.Errorf("the verdict has %d lines", lines)
	}
	return r
}

// Relays are killed with -9 at random points while messages are in flight: nothing is lost. make kills does it 10,000 times.
func TestKillsLoseNothing(t *testing.T) {
	t.Parallel()
	r := endured(t, "kills", "-n", "30", "-relays", "4")
	if !r.Holds || r.Count != 30 || r.Flight.Relays < 15 {
		t.Errorf("%d kills, %d with messages in flight: %v", r.Count, r.Flight.Relays, r.Broken)
	}
}

// Relays are restarted, and their number changed, while messages are in flight: nothing is lost and nothing comes twice. make
// restarts does it 1,000 times.
func TestRestartsAndScaleChangesRepeatNothing(t *testing.T) {
	t.Parallel()
	r := endured(t, "restarts", "-n", "20")
	if !r.Holds || r.Count != 20 || r.Scales == 0 || r.Flight.Relays < 8 || r.Verdict.Duplicates != 0 {
		t.Errorf("%d restarts, %d of them changes of the number, %d with messages in flight: %v", r.Count, r.Scales, r.Flight.Relays, r.Broken)
	}
}

// Each broken promise breaks the verdict.
func TestTheVerdictSeesEachBrokenPromise(t *testing.T) {
	t.Parallel()
	sound := report{What: "kills", Verdict: harness.Verdict{Sent: 9, Arrived: 9, Duplicates: 2}, Flight: flights{Relays: 1, Messages: 3}}
	if sound.judge(); !sound.Holds || !strings.HasPrefix(sound.String(), "HOLDS: ") {
		t.Errorf("a sound run: %v", &sound)
	}
	for name, harm := range map[string]func(*report){
		"lost":       func(r *report) { r.Verdict.Lost = 1 },
		"phantom":    func(r *report) { r.Verdict.Phantom = 1 },
		"reordered":  func(r *report) { r.Verdict.Reordered = 1 },
		"two owners": func(r *report) { r.Owners.Shared = 1 },
		"no cause":   func(r *report) { r.Owners.Living = 1 },
		"died":       func(r *report) { r.Died = []string{"relay-1"} },
		"restarts":   func(r *report) { r.What = "restarts" }, // with duplicates
		"no load":    func(r *report) { r.Verdict = harness.Verdict{} },
		"idle":       func(r *report) { r.Flight = flights{} },
	} {
		r := sound
		harm(&r)
		if r.judge(); r.Holds || len(r.Broken) == 0 || !strings.HasPrefix(r.String(), "BROKEN (") {
			t.Errorf("%s: %v", name, &r)
		}
	}
}

// A saved run is judged again from its file.
func TestASavedRunIsCheckedAgain(t *testing.T) {
	t.Parallel()
	sound := harness.Run{
		Ledger:   []harness.Entry{{ID: "1", Key: "a", N: 1}},
		Arrivals: []harness.Arrival{{ID: "1", Key: "a", Position: 1, At: time.Unix(1, 0), Epoch: "1", Relay: "one/1"}},
	}
	lost := sound
	lost.Arrivals = nil
	for code, saved := range []harness.Run{sound, lost} {
		file := filepath.Join(t.TempDir(), "run.json")
		if err := saved.Save(file); err != nil {
			t.Fatal(err)
		}
		var out, words bytes.Buffer
		if got := run(t.Context(), []string{"check", file}, &out, &words); got != code || !strings.HasPrefix(out.String(), "sent 1") {
			t.Errorf("exit code %d, want %d: %s%s", got, code, &out, &words)
		}
	}
}

func TestWrongUsageIsTold(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"kill"}, {"check"}, {"kills", "-n", "0"}, {"kills", "more"}, {"restarts", "-lease", "1ms"}} {
		var out, words bytes.Buffer
		if code := run(t.Context(), args, &out, &words); code != 2 || !strings.Contains(words.String(), "usage: endure") {
			t.Errorf("%v: exit code %d, %s", args, code, &words)
		}
	}
}

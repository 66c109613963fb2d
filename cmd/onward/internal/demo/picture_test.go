package demo

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onwardhq/onward/cmd/onward/internal/golden"
)

// scene is a run in which a bit of everything has happened.
func scene() Scene {
	s := Scene{
		At: 12 * time.Second, For: 30 * time.Second, Phase: "runs", Seed: 7, Rate: 200, Fault: "crash", Written: 12412, RolledBack: 121,
		Published: 12390, Backlog: 22, Lag: 1234 * time.Millisecond, Parked: 9, Dead: 2,
		Sinks: []SinkLine{
			{Name: "eu", Backlog: 2, Lag: 9 * time.Millisecond, Published: 4100, Owner: "relay-eu"},
			{Name: "us", Backlog: 20, Lag: 1234 * time.Millisecond, Published: 4090, Owner: "relay-us"},
			{Name: "asia", Parked: 9, Dead: 2, Published: 4200, Owner: "standby"},
		},
		Relays: []RelayLine{
			{Name: "relay-eu", Published: 4100},
			{Name: "relay-us", State: "killed", Published: 4000},
			{Name: "relay-asia", Published: 2000, Waits: true},
			{Name: "standby", Published: 1200, Again: 14},
		},
		Events: []Event{
			{2 * time.Second, "dead letter c4a08ba4", Bad},
			{10 * time.Second, "relay-us is killed (SIGKILL): no goodbye, its lease of 2s runs out first", Act},
			{12 * time.Second, "standby has taken us over from relay-us, 2.1s later", Good},
		},
	}
	for i := range 300 {
		s.WrittenRates = append(s.WrittenRates, 200)
		s.PublishedRates = append(s.PublishedRates, float64(i%10)*40)
		s.Backlogs = append(s.Backlogs, float64(i))
	}
	return s
}

func bare(text string, _ Color) string { return text }

func TestPicture(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Canvas{
		"80x23":       {Columns: 79, Rows: 23, Unicode: true, Paint: bare},
		"200x50":      {Columns: 199, Rows: 49, Unicode: true, Paint: bare},
		"80x23-ascii": {Columns: 79, Rows: 23, Paint: bare},
		"colors": {Columns: 99, Rows: 40, Unicode: true, Paint: func(text string, c Color) string {
			if c == NoColor || strings.TrimSpace(text) == "" {
				return text
			}
			return "{" + string(c) + " " + text + "}"
		}},
	} {
		s := scene()
		golden.Compare(t, "picture-"+name, strings.Join(s.Draw(c), "\n")+"\n")
	}
}

// A line that wraps, or one too many, would tear every later frame.
func TestAPictureFitsItsTerminal(t *testing.T) {
	t.Parallel()
	full, none := scene(), Scene{}
	for columns := 1; columns < 240; columns += 7 {
		for rows := 1; rows < 60; rows += 3 {
			for _, s := range []Scene{full, none} {
				lines := s.Draw(Canvas{Columns: columns, Rows: rows, Unicode: true, Paint: bare})
				if len(lines) > rows {
					t.Fatalf("%d lines in a terminal of %d rows", len(lines), rows)
				}
				for _, l := range lines {
					if n := utf8.RuneCountInString(l); n > columns {
						t.Fatalf("a line of %d in a terminal of %d columns: %q", n, columns, l)
					}
				}
			}
		}
	}
}

func TestAPictureInASCIIHasNothingElse(t *testing.T) {
	t.Parallel()
	s := scene()
	for _, l := range s.Draw(Canvas{Columns: 120, Rows: 40, Paint: bare}) {
		for _, r := range l {
			if r > 127 {
				t.Fatalf("%q in %q", r, l)
			}
		}
	}
}

// Whatever ends the process between two frames, the terminal needs no repair: no mode is left on, and the cursor stands below.
func TestAFrameLeavesTheTerminalAsItWas(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	screen := NewScreen(&out)
	screen.Show([]string{"one", "two"}, 80)
	if got, want := out.String(), "\x1b[?2026hone\x1b[K\r\ntwo\x1b[K\r\n\x1b[J\x1b[?2026l"; got != want {
		t.Errorf("the first frame is %q, want %q", got, want)
	}
	out.Reset()
	screen.Show([]string{"one"}, 80)
	if got, want := out.String(), "\x1b[?2026h\r\x1b[2Aone\x1b[K\r\n\x1b[J\x1b[?2026l"; got != want {
		t.Errorf("the next frame is %q, want %q: up two lines", got, want)
	}
	out.Reset()
	screen.Show([]string{"one"}, 60)
	if got, want := out.String(), "\x1b[?2026h\x1b[H\x1b[2Jone\x1b[K\r\n\x1b[J\x1b[?2026l"; got != want {
		t.Errorf("after the width changed the frame is %q, want %q: all anew", got, want)
	}
}

package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Screen draws pictures over each other at the end of a terminal. It changes nothing that would have to be restored: each frame
// leaves the cursor below the picture, visible, and whatever ends the process leaves a terminal as it was.
type Screen struct {
	out     io.Writer
	lines   int // of the last picture
	columns int
}

// NewScreen returns a screen on a terminal.
func NewScreen(out io.Writer) *Screen { return &Screen{out: out} }

// Show replaces the last picture. In a terminal whose width has changed the last one is torn, so all is cleared.
func (s *Screen) Show(lines []string, columns int) {
	var b strings.Builder
	b.WriteString("\x1b[?2026h") // terminals that know it show the frame at once
	switch {
	case s.columns != 0 && s.columns != columns:
		b.WriteString("\x1b[H\x1b[2J")
	case s.lines > 0:
		fmt.Fprintf(&b, "\r\x1b[%dA", s.lines)
	}
	for _, l := range lines {
		b.WriteString(l + "\x1b[K\r\n")
	}
	b.WriteString("\x1b[J\x1b[?2026l")
	s.lines, s.columns = len(lines), columns
	_, _ = io.WriteString(s.out, b.String()) // a terminal that is gone: the demo goes on, and its end says what there is to say
}

// Line is the scene in one line, for logs.
func (s *Scene) Line() string {
	text := fmt.Sprintf("%s  written %s  rolled back %s  published %s  waiting %s  lag %s  parked %s  dead %s ", clock(s.At),
		group(int64(s.Written)), group(int64(s.RolledBack)), group(s.Published), group(s.Backlog), span(s.Lag), group(s.Parked), group(s.Dead))
	total := 0
	for _, r := range s.Relays {
		total += r.Published
	}
	for _, r := range s.Relays {
		text += fmt.Sprintf(" %s %.0f%%", r.Name, 100*float64(r.Published)/float64(max(total, 1)))
	}
	return text
}

// Line is an event in one line, for logs.
func (e Event) Line() string { return clock(e.At) + "  " + e.Text }

// LineEvery is how often a log is told how things stand.
const LineEvery = 2 * time.Second

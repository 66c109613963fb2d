package demo

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Color is what a part of the picture means. Only the terminal's own colors are used, so that it can be read on light and dark.
type Color string

// The colors.
const (
	NoColor Color = ""
	Strong  Color = "1"
	Faint   Color = "2"
	Red     Color = "31"
	Green   Color = "32"
	Yellow  Color = "33"
	Cyan    Color = "36"
)

// Canvas is what there is to draw on.
type Canvas struct {
	Columns, Rows int
	Unicode       bool // otherwise ASCII
	Paint         func(text string, c Color) string
}

// part is a piece of a line.
type part struct {
	text  string
	color Color
}

// line is a line of the picture.
type line []part

func words(text string, c Color) line { return line{{text, c}} }

func (l line) and(text string, c Color) line {
	if last := len(l) - 1; last >= 0 && l[last].color == c {
		l[last].text += text
		return l
	}
	return append(l, part{text, c})
}

func (l line) width() (n int) {
	for _, p := range l {
		n += utf8.RuneCountInString(p.text)
	}
	return n
}

// to fills a line up with blanks to a column.
func (l line) to(column int) line {
	return l.and(strings.Repeat(" ", max(0, column-l.width())), NoColor)
}

// render paints a line, and cuts it off where the terminal ends: a line that wraps would ruin the picture.
func (l line) render(c Canvas) string {
	var b strings.Builder
	room := c.Columns
	for _, p := range l {
		text := []rune(p.text)
		if len(text) > room {
			text = text[:room]
		}
		room -= len(text)
		b.WriteString(c.Paint(string(text), p.color))
	}
	return strings.TrimRight(b.String(), " ")
}

// fewestEvents are lines that are kept for what just happened.
const fewestEvents = 4

// Draw makes the picture: at most Rows lines, none wider than Columns.
func (s *Scene) Draw(c Canvas) []string {
	c.Columns = max(c.Columns, 1)
	blocks := [][]line{{s.title(c)}, s.flow(c), s.curves(c), s.sinks(), s.shares(c)}
	blank := c.Rows - fewestEvents - len(slices.Concat(blocks...)) // lines to spare: in a low window what just happened matters more
	var lines []line
	for i, block := range append(blocks, nil) {
		if i > 0 && i > len(blocks)-blank {
			lines = append(lines, line{})
		}
		lines = append(lines, block...)
	}
	room := min(max(c.Rows-len(lines), 1), 10)
	if len(lines) > c.Rows-room {
		lines = lines[:max(0, c.Rows-room)]
	}
	lines = append(lines, s.happenings(c, room)...)
	text := make([]string, len(lines))
	for i, l := range lines {
		text[i] = l.render(c)
	}
	return text
}

func (s *Scene) title(c Canvas) line {
	l := words("onward demo", Strong).and(fmt.Sprintf("  %s of %s  ", clock(min(s.At, s.For)), clock(s.For)), NoColor)
	tail := fmt.Sprintf("  seed %d", s.Seed)
	switch {
	case s.Phase != "runs":
		tail = "  " + s.Phase
	case s.Fault != string(HandOver):
		tail += ", --fail " + s.Fault
	}
	room := min(c.Columns-l.width()-len(tail), 60)
	if room < 4 {
		return l.and(tail, Faint)
	}
	done := int(float64(room) * min(1, s.At.Seconds()/max(s.For.Seconds(), 0.001)))
	return l.and(strings.Repeat(c.either("━", "="), done), Cyan).and(strings.Repeat(c.either("─", "-"), room-done), Faint).and(tail, Faint)
}

// either is the first text where the terminal shows more than ASCII.
func (c Canvas) either(unicode, ascii string) string {
	if c.Unicode {
		return unicode
	}
	return ascii
}

// flow is the way of a message, with what is where.
func (s *Scene) flow(c Canvas) []line {
	gap := min(max(c.Columns/4, 18), 30)
	arrow := " " + c.either("──▶", "-->") + " "
	head, upper, lower := line{}, line{}, line{}
	add := func(at int, title string, first, second line) {
		at *= gap
		head = head.to(at+2).and(title, Faint)
		if at > 0 {
			upper = upper.to(at-3).and(arrow, Faint)
		}
		upper = append(upper.to(at+2), first...)
		lower = append(lower.to(at+2), second...)
	}
	live := 0
	for _, r := range s.Relays {
		if r.State == "" {
			live++
		}
	}
	broker := words("up", Green)
	if s.Stopped {
		broker = words("stopped", Red)
	}
	add(0, "order service", number(int64(s.Written), " written", Strong), number(int64(s.RolledBack), " rolled back", NoColor))
	add(1, "outbox, SQLite", number(s.Backlog, " waiting", Strong), words("lag "+span(s.Lag), NoColor))
	add(2, "relays", number(int64(live), " live", Strong), number(s.Parked, " parked", alarm(s.Parked, Yellow)).and(", ", NoColor).and(fmt.Sprint(s.Dead, " dead"), alarm(s.Dead, Red)))
	add(3, "JetStream", number(s.Published, " confirmed", Strong), broker)
	return []line{head, upper, lower}
}

func number(n int64, what string, c Color) line {
	return words(group(n), c).and(what, NoColor)
}

// alarm is the color of a number that should be 0.
func alarm(n int64, c Color) Color {
	if n > 0 {
		return c
	}
	return NoColor
}

// curves are the last minutes: what is written, what is published, what waits.
func (s *Scene) curves(c Canvas) []line {
	room := min(c.Columns-24, mostSamples)
	var lines []line
	// One scale for both, so that they can be compared, with some air above.
	top := max(highest(s.WrittenRates), highest(s.PublishedRates), 1.3*float64(s.Rate))
	for _, curve := range []struct {
		name   string
		values []float64
		top    float64
		color  Color
	}{
		{"written/s", s.WrittenRates, top, Cyan},
		{"published/s", s.PublishedRates, top, Green},
		{"waiting", s.Backlogs, max(highest(s.Backlogs), float64(s.Rate)), Yellow},
	} {
		l := words("  "+curve.name, Faint).to(14)
		now := 0.0
		if n := len(curve.values); n > 0 {
			now = curve.values[n-1]
		}
		figure := group(int64(math.Round(now)))
		l = l.to(21-len(figure)).and(figure, Strong).and("  ", NoColor)
		lines = append(lines, l.and(c.spark(curve.values, room, curve.top), curve.color))
	}
	return lines
}

func highest(values []float64) (top float64) {
	for _, v := range values {
		top = max(top, v)
	}
	return top
}

// spark draws the newest values.
func (c Canvas) spark(values []float64, room int, top float64) string {
	heights := []rune(c.either("▁▂▃▄▅▆▇█", "_.:-=+*#"))
	if n := len(values) - max(room, 0); n > 0 {
		values = values[n:]
	}
	var b strings.Builder
	for _, v := range values {
		i := 0
		if top > 0 {
			i = min(int(v/top*float64(len(heights)-1)+0.5), len(heights)-1)
		}
		b.WriteRune(heights[max(i, 0)])
	}
	return b.String()
}

func (s *Scene) sinks() []line {
	lines := []line{words("  SINK     WAITING     LAG   PARKED   DEAD   PUBLISHED   SERVED BY", Faint)}
	for _, k := range s.Sinks {
		owner, color := k.Owner, Green
		for _, r := range s.Relays {
			if r.Name == k.Owner && r.State != "" {
				owner, color = k.Owner+", "+r.State, Red
			}
		}
		l := words("  "+k.Name, NoColor)
		for _, column := range []struct {
			end   int
			text  string
			color Color
		}{
			{18, group(k.Backlog), NoColor},
			{26, span(k.Lag), NoColor},
			{35, group(k.Parked), alarm(k.Parked, Yellow)},
			{42, group(k.Dead), alarm(k.Dead, Red)},
			{54, group(k.Published), NoColor},
		} {
			l = l.to(column.end-utf8.RuneCountInString(column.text)).and(column.text, column.color)
		}
		lines = append(lines, l.to(57).and(owner, color))
	}
	return lines
}

// shares says who publishes how much.
func (s *Scene) shares(c Canvas) []line {
	room := min(max(c.Columns-58, 6), 60)
	head := words("  RELAY        SHARE", Faint).to(15+room+6).and("PUBLISHED  AGAIN   DOES", Faint)
	lines := []line{head}
	total := 0
	for _, r := range s.Relays {
		total += r.Published
	}
	for _, r := range s.Relays {
		share := float64(r.Published) / float64(max(total, 1))
		done := int(math.Round(share * float64(room)))
		l := words("  "+r.Name, NoColor).to(15).and(strings.Repeat(c.either("█", "#"), done), Cyan).
			and(strings.Repeat(c.either("░", "."), room-done), Faint).and(fmt.Sprintf("%4.0f%%", 100*share), NoColor)
		published, again := group(int64(r.Published)), group(int64(r.Again))
		l = l.to(15+room+6+9-len(published)).and(published, NoColor).to(15+room+6+16-len(again)).and(again, alarm(int64(r.Again), Yellow))
		does, color := s.does(r)
		lines = append(lines, l.to(15+room+6+19).and(does, color))
	}
	return lines
}

// does says what a relay is at.
func (s *Scene) does(r RelayLine) (string, Color) {
	if r.State != "" {
		return r.State, Red
	}
	if r.Waits {
		return "waits: no broker", Yellow
	}
	var serves []string
	for _, k := range s.Sinks {
		if k.Owner == r.Name {
			serves = append(serves, k.Name)
		}
	}
	if len(serves) == 0 {
		return "stands by", Faint
	}
	return "serves " + strings.Join(serves, ", "), Green
}

// happenings are the last events, the newest at the bottom, folded to the width.
func (s *Scene) happenings(c Canvas, room int) []line {
	var lines []line
	for i := len(s.Events) - 1; i >= 0; i-- {
		folded := s.Events[i].lines(c)
		if len(lines)+len(folded) > room {
			if i == len(s.Events)-1 {
				lines = folded[:room]
			}
			break
		}
		lines = append(folded, lines...)
	}
	return lines
}

func (e Event) lines(c Canvas) (lines []line) {
	color := map[Mood]Color{Good: Green, Bad: Red, Act: Strong}[e.Mood]
	const indent = 9
	l := words("  "+clock(e.At), Faint).to(indent)
	for _, word := range strings.Fields(e.Text) {
		if l.width() > indent && l.width()+1+utf8.RuneCountInString(word) > c.Columns {
			lines = append(lines, l)
			l = line{}.to(indent)
		}
		if l.width() > indent {
			word = " " + word
		}
		l = l.and(word, color)
	}
	return append(lines, l)
}

func clock(d time.Duration) string {
	return fmt.Sprintf("%02d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

func span(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(100 * time.Millisecond).String()
	}
}

// group writes 1,234,567.
func group(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

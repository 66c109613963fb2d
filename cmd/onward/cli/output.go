package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The outputs.
const (
	outTable = "table"
	outJSON  = "json"  // one document
	outJSONL = "jsonl" // one object a line
)

var outputs = []string{outTable, outJSON, outJSONL}

func (a *app) checkOutput() error {
	if slices.Contains(outputs, a.output) {
		return nil
	}
	return fmt.Errorf("--output %s: is not one of %s", a.output, strings.Join(outputs, ", "))
}

// emit writes data to stdout: the document, a line for each of its parts, or the table.
func (a *app) emit(document any, lines []any, t func() *table) error {
	out := a.out()
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	switch a.output {
	case outJSON:
		encoder.SetIndent("", "  ")
		return encoder.Encode(document)
	case outJSONL:
		for _, line := range lines {
			if err := encoder.Encode(line); err != nil {
				return err
			}
		}
		return nil
	}
	return t().write(out, a.paint(a.env.OutIsTerminal), a.env.Columns)
}

// say writes words to stderr, unless they are not wanted.
func (a *app) say(format string, args ...any) {
	if !a.quiet {
		a.print(format+"\n", args...)
	}
}

// print writes to stderr. Where that fails, there is nobody left to tell.
func (a *app) print(format string, args ...any) {
	a.errLock.Lock()
	defer a.errLock.Unlock()
	_, _ = fmt.Fprintf(a.env.Err, format, args...)
}

// anys makes the lines of emit.
func anys[T any](all []T) []any {
	lines := make([]any, len(all))
	for i := range all {
		lines[i] = all[i]
	}
	return lines
}

// clock writes a time in tables; JSON has RFC 3339.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// span writes a duration to two digits or so: 1.2s, 3m20s, 2d4h.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d < time.Millisecond:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 24*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	default:
		hours := int64(d.Round(time.Hour) / time.Hour)
		return fmt.Sprintf("%dd%dh", hours/24, hours%24)
	}
}

// count writes a number with thin groups: 1,234,567.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// atLeast marks a count that stopped.
func atLeast(n int64, stopped bool) string {
	if stopped {
		return count(n) + "+"
	}
	return count(n)
}

// plural writes "1 message" or "2 messages".
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(int64(n)) + " " + one + "s"
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

package cli

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// style is a color of the terminal, as the number of its escape sequence.
type style string

const (
	plain  style = ""
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
	bold   style = "1"
	faint  style = "2"
)

// painter puts a style around a text, or leaves it out.
type painter func(text string, s style) string

// paint returns a painter for a stream: colors need a terminal, and nobody who does not want them.
func (a *app) paint(terminal bool) painter {
	if !terminal || a.noColor || a.env.variable("NO_COLOR") != "" || a.env.variable("TERM") == "dumb" {
		return func(text string, _ style) string { return text }
	}
	return func(text string, s style) string {
		if s == plain || text == "" {
			return text
		}
		return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
	}
}

// cell is one field of a table.
type cell struct {
	text  string
	style style
	right bool // numbers
}

func text(s string) cell   { return cell{text: visible(s)} }
func number(s string) cell { return cell{text: s, right: true} }

// table is columns under a header, two spaces between them.
type table struct {
	header []cell
	rows   [][]cell
}

func newTable(header ...string) *table {
	t := &table{}
	for _, h := range header {
		t.header = append(t.header, cell{text: h, style: bold})
	}
	return t
}

func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

// write writes the table; a header stands over numbers as they stand. Where a row is wider than the terminal (columns, 0:
// any width will do), what does not fit goes below, further in: a column is never torn.
func (t *table) write(w io.Writer, p painter, columns int) error {
	widths := make([]int, len(t.header))
	for _, row := range append([][]cell{t.header}, t.rows...) {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	if len(t.rows) > 0 {
		for i := range t.header {
			t.header[i].right = t.rows[0][i].right
		}
	}
	breaks := fold(widths, columns)
	var b strings.Builder
	for _, row := range append([][]cell{t.header}, t.rows...) {
		line := ""
		for i, c := range row {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text))
			switch {
			case breaks[i]:
				b.WriteString(strings.TrimRight(line, " ") + "\n")
				line = indent
			case i > 0:
				line += "  "
			}
			if c.right {
				line += gap + p(c.text, c.style)
			} else {
				line += p(c.text, c.style) + gap
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const indent = "    " // of what is below its row

// fold says before which columns a row is broken.
func fold(widths []int, columns int) []bool {
	breaks := make([]bool, len(widths))
	at := 0
	for i, width := range widths {
		if i > 0 {
			at += 2
		}
		if i > 0 && columns > 0 && at+width > columns {
			breaks[i] = true
			at = len(indent)
		}
		at += width
	}
	return breaks
}

// visible replaces what would move a terminal's cursor or change its colors: a message may contain anything.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && r != ' ' {
			return '\uFFFD'
		}
		return r
	}, s)
}

// short cuts a text to n characters.
func short(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	runes := []rune(s)
	return string(runes[:n-1]) + "…"
}

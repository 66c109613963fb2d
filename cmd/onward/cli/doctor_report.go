package cli

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

const reportColumns = 80 // of a report that goes to no terminal, and of wide ones

var severityStyles = map[doctor.Severity]style{doctor.OK: green, doctor.Note: cyan, doctor.Unknown: yellow, doctor.Warning: yellow, doctor.Unsafe: red}

// writeReport writes a report for people: of each server its verdict, what its word is worth, and the findings, the worst
// first. Sentences are wrapped; what is to be copied never is.
func writeReport(out io.Writer, r doctor.Report, p painter, columns int) error {
	if columns <= 0 || columns > 100 {
		columns = reportColumns
	}
	var b strings.Builder
	for i := range r {
		if i > 0 {
			b.WriteString("\n")
		}
		writeAnswer(&b, &r[i], p, columns)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func writeAnswer(b *strings.Builder, a *doctor.Answer, p painter, columns int) {
	const margin = "           "
	title := strings.TrimSpace(a.Kind + " " + a.Name)
	about := visible(strings.TrimSpace(strings.Join(slices.DeleteFunc([]string{a.Server, a.Address}, func(s string) bool { return s == "" }), ", ")))
	b.WriteString(p(title, bold) + "  " + p(about, faint) + "\n")
	if a.Err != nil {
		b.WriteString("  " + p(pad("unknown"), severityStyles[doctor.Unknown]) + strings.Join(wrap(visible(a.Err.Error()), columns-len(margin)), "\n"+margin) + "\n")
		if hint := outbox.Hint(a.Err); hint != "" {
			b.WriteString(margin + p("fix: ", bold) + visible(hint) + "\n")
		}
		return
	}
	verdict := a.Verdict()
	b.WriteString("  " + p(pad(verdict.String()), severityStyles[verdict]) + p(strings.Join(wrap(visible(a.Worth), columns-len(margin)), "\n"+margin), bold) + "\n\n")
	findings := together(a.Findings)
	slices.SortStableFunc(findings, func(x, y doctor.Finding) int { return int(y.Severity) - int(x.Severity) })
	for _, f := range findings {
		read := visible(f.Read)
		if f.Where != "" {
			read = visible(f.Where) + ": " + read
		}
		b.WriteString("  " + p(pad(f.Severity.String()), severityStyles[f.Severity]) + strings.Join(wrap(read, columns-len(margin)), "\n"+margin) + "\n")
		for _, line := range wrap(visible(f.Means), columns-len(margin)) {
			b.WriteString(margin + line + "\n")
		}
		if f.Fix != "" {
			b.WriteString(margin + p("fix: ", bold) + visible(f.Fix) + "\n")
		}
	}
}

// together are the findings, with what is as it should be in several places in one line: a sink may have many topics.
func together(all []doctor.Finding) []doctor.Finding {
	var out []doctor.Finding
	for _, f := range all {
		i := slices.IndexFunc(out, func(o doctor.Finding) bool {
			return f.Severity == doctor.OK && o.Severity == doctor.OK && o.Check == f.Check && o.Read == f.Read
		})
		if i >= 0 {
			out[i].Where += ", " + f.Where
			continue
		}
		out = append(out, f)
	}
	return out
}

func pad(word string) string { return word + strings.Repeat(" ", max(1, 9-len(word))) }

// wrap breaks a text into lines of at most so many characters, at its blanks.
func wrap(text string, columns int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > columns:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

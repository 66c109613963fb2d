package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/onwardhq/onward/outbox"
)

// CodeUnknownKey is the code of a setting that does not exist.
const CodeUnknownKey outbox.Code = "onward/config-unknown-key"

// Fault is one thing that is wrong with the configuration.
type Fault struct {
	Place   string // "onward.yaml:12:5", "ONWARD_RELAY__LEASE", "--set relay.lease"; empty: it is missing everywhere
	Path    string // the setting: "sinks[0].retry.attempts"
	Detail  string // what is wrong
	Unknown bool   // there is no such setting

	line, column int // in the file; 0: elsewhere
}

// String is the fault in one line.
func (f Fault) String() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{f.Place, f.Path, f.Detail} {
		if s != "" && !strings.HasSuffix(f.Place, " "+s) {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Faults are all of them, in the order of the file.
type Faults []Fault

// Error is all of them, a line each.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// err makes the faults an *outbox.Error, nil where there are none.
func (fs Faults) err() error {
	if len(fs) == 0 {
		return nil
	}
	code, what := outbox.ErrConfigInvalid.Code, "faults"
	if !slices.ContainsFunc(fs, func(f Fault) bool { return !f.Unknown }) {
		code, what = CodeUnknownKey, "unknown keys"
	}
	if len(fs) == 1 {
		what = strings.TrimSuffix(what, "s")
	}
	return &outbox.Error{
		Code: code, Op: "read the configuration", Detail: fmt.Sprintf("%d %s", len(fs), what), Err: fs,
		Hint: "`onward help config` lists every setting",
	}
}

// sorted puts what is wrong in the file first, from top to bottom.
func (fs Faults) sorted() Faults {
	slices.SortStableFunc(fs, func(a, b Fault) int {
		if (a.line == 0) != (b.line == 0) {
			return b.line - a.line
		}
		return cmp.Or(a.line-b.line, a.column-b.column)
	})
	return fs
}

// Nearest returns the known name that the given one begins with or is most like; "" where none is like it.
func Nearest(name string, known []string) string {
	best, at := "", max(2, len(name)/3)+1
	for _, k := range known {
		if strings.HasPrefix(name, k+"_") || strings.HasPrefix(k, name+"_") {
			return k
		}
		if d := distance(strings.ToLower(name), k); d < at {
			best, at = k, d
		}
	}
	return best
}

// distance is how many letters must be put in, left out, changed or swapped with a neighbour to make b of a (the
// restricted Damerau-Levenshtein distance).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}

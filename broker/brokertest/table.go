package brokertest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Row is what a driver answers in one situation: a row of the table on its page, which CheckTable compares with the driver's own.
type Row struct {
	Outcome broker.Outcome
	Code    outbox.Code
	Seen    string // how the publisher knows; a * at the end marks what the driver's tests cannot bring about
	Means   string
}

// Want compares an answer with a row.
func Want(tb testing.TB, r broker.Result, w Row) {
	tb.Helper()
	if r.Outcome != w.Outcome || r.Code != w.Code {
		tb.Errorf("got %s %s (%v), want %s %s: %s", r.Outcome, r.Code, r.Err, w.Outcome, w.Code, w.Means)
	}
	if w.Outcome > broker.Duplicate && r.Err == nil {
		tb.Errorf("%s without a cause", r.Outcome)
	}
}

// RunTable brings each situation about: drive(i) does rows[i]. Only a row that is marked * may have none.
func RunTable(t *testing.T, rows []Row, drive func(i int) func(t *testing.T)) {
	t.Helper()
	for i, row := range rows {
		act := drive(i)
		if act == nil {
			if !strings.HasSuffix(row.Seen, "*") {
				t.Errorf("nothing brings it about: %s: %s", row.Seen, row.Means)
			}
			continue
		}
		t.Run(fmt.Sprintf("%s %s", row.Outcome, row.Means), func(t *testing.T) {
			t.Parallel()
			act(t)
		})
	}
}

// The table stands between these two lines of a page.
const (
	tableBegins = "<!-- outcomes: written by go test -update -->\n"
	tableEnds   = "<!-- end of outcomes -->"
)

// CheckTable compares the table of a page with the rows, or writes it there.
func CheckTable(tb testing.TB, page string, rows []Row, write bool) {
	tb.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		tb.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), tableBegins)
	old, after, ended := strings.Cut(rest, tableEnds)
	if !found || !ended {
		tb.Fatalf("%s has no table between %q and %q", page, tableBegins, tableEnds)
	}
	table := tableOf(rows)
	if write {
		if err := os.WriteFile(page, []byte(before+tableBegins+table+tableEnds+after), 0o600); err != nil {
			tb.Fatal(err)
		}
	} else if old != table {
		tb.Errorf("%s is not what the publisher does (go test -update writes it):\n%s", page, table)
	}
}

func tableOf(rows []Row) string {
	var table strings.Builder
	table.WriteString("| how the publisher knows | what it is | outcome | code |\n|---|---|---|---|\n")
	for _, row := range rows {
		code := "-"
		if row.Code != "" {
			code = "`" + strings.TrimPrefix(string(row.Code), "onward/") + "`"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", row.Seen, row.Means, row.Outcome, code)
	}
	return table.String()
}

package cli

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/onwardhq/onward/cmd/onward/internal/golden"
)

// What differs from run to run: the server's version and clock, transactions, and ages.
var differing = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`PostgreSQL [0-9.]+`), "PostgreSQL N"},
	{regexp.MustCompile(`schema [0-9]+`), "schema N"},
	{regexp.MustCompile(`"schema": ?[0-9]+`), `"schema": 0`},
	{regexp.MustCompile(`"now": ?"[^"]+"`), `"now": "..."`},
	{regexp.MustCompile(`"(lag_ms|txid)": ?[0-9.]+`), `"$1": 0`},
	{regexp.MustCompile(`--after [0-9]+\.`), "--after TX."},
	{regexp.MustCompile(`"next": "[0-9]+\.`), `"next": "TX.`},
	{regexp.MustCompile(`(transaction +)[0-9]+`), "${1}TX"},
	{regexp.MustCompile(` +[0-9]+d[0-9]+h( ago)?`), "  AGE$1"},
	{regexp.MustCompile(`"leased_until": ?"20[^"]+"`), `"leased_until": "..."`},
	{regexp.MustCompile(`20[0-9-]+ [0-9:]+$`), "UNTIL"},
}

var gaps = regexp.MustCompile(` {2,}`)

func alike(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		for _, d := range differing {
			if d.instead == "UNTIL" && !strings.Contains(line, "relay-1  live") {
				continue
			}
			line = d.pattern.ReplaceAllString(line, d.instead)
		}
		lines[i] = line
	}
	for i, line := range lines { // a column is as wide as its ages are long today
		if strings.Contains(text, "LAG") && !strings.HasPrefix(line, " ") {
			lines[i] = gaps.ReplaceAllString(line, "  ")
		}
	}
	return strings.Join(lines, "\n")
}

// What each command that looks writes, in each output.
func TestLooking(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	for name, commands := range map[string][]string{
		"status":        {"status", "status -o json", "status -o jsonl -q"},
		"messages-list": {"messages list", "messages list --limit 2", "messages list --state parked", "messages list --key order-2 -o jsonl", "messages list --limit 1 -o json", "messages list --state dead --quiet", "messages list --code rejected --since 2h", "messages list --topic nothing"},
		"messages-show": {"messages show " + id(2), "messages show " + id(4), "messages show " + id(6), "messages show " + id(2) + " -o json", "messages show " + id(4) + " -o jsonl"},
		"dead-list":     {"dead list", "dead list --limit 1", "dead list --type Audit -o json", "dead list -o jsonl -q", "dead list --code unroutable", "dead list --until 45m", "dead list --id " + id(4) + " -o jsonl -q", "dead list --id " + id(1), "dead list --id x"},
		"dead-show":     {"dead show " + id(4), "dead show " + id(6), "dead show " + id(4) + " -o json", "dead show " + id(4) + " -o jsonl -q"},
		"partitions":    {"partitions list", "partitions list --sink orders -o json", "partitions list -o jsonl -q"},
		"relays":        {"relays list", "relays list -o json", "relays list -o jsonl -q"},
		"refusals": {
			"messages show " + id(9), "messages show x", "messages show", "messages show " + id(1) + " " + id(2), "messages list --state lost", "messages list --limit 0",
			"messages list --limit 20000", "messages list --since yesterday", "messages list --sink oders", "messages list --after nowhere", "messages list -o xml",
			"messages list --limit many", "dead show " + id(1), "partitions list --sink oders", "status now", "state",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden.Compare(t, name, alike(d.sessions(t, commands...)))
		})
	}
}

// Every JSON output is JSON, and every line of jsonl is.
func TestOutputsAreJSON(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	for _, command := range []string{
		"status", "messages list", "messages show " + id(4), "dead list", "dead show " + id(4), "partitions list", "relays list", "migrate status", "version",
		"dead requeue --sink orders --dry-run",
	} {
		args := strings.Fields(command)
		if r := d.run(t, append(args, "-o", "json")...); !json.Valid([]byte(r.out)) || r.code != 0 {
			t.Errorf("%s -o json: %+v", command, r)
		}
		r := d.run(t, append(args, "-o", "jsonl")...)
		for line := range strings.Lines(r.out) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s -o jsonl: %q", command, line)
			}
		}
		if r.out == "" {
			t.Errorf("%s -o jsonl: nothing", command)
		}
	}
}

// Colors are for terminals, and for those who want them; data never brings its own.
func TestColors(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	const escape = "\x1b["
	terminal := d.console
	terminal.terminal = true
	if r := terminal.run(t, "messages", "list"); !strings.Contains(r.out, escape) {
		t.Errorf("on a terminal: no colors in %q", r.out)
	}
	if r := terminal.run(t, "messages", "list", "--no-color"); strings.Contains(r.out, escape) {
		t.Errorf("--no-color: %q", r.out)
	}
	if r := d.run(t, "messages", "list"); strings.Contains(r.out, escape) {
		t.Errorf("not on a terminal: %q", r.out)
	}
	terminal.environ = append(terminal.environ, "NO_COLOR=1")
	for _, command := range []string{"messages list", "dead list", "messages show " + id(6), "dead show " + id(6), "dead show " + id(4), "status"} {
		if r := terminal.run(t, strings.Fields(command)...); strings.ContainsRune(r.out+r.err, '\x1b') {
			t.Errorf("%s with NO_COLOR: an escape sequence in %q", command, r.out+r.err)
		}
	}
	if r := terminal.run(t, "nonsense"); r.code != exitUsage || strings.Contains(r.err, escape) {
		t.Errorf("got %+v", r)
	}
}

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/cmd/onward/internal/golden"
)

// The help of every command: it teaches, with an example each.
func TestHelp(t *testing.T) {
	t.Parallel()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		args := append(strings.Fields(c.CommandPath())[1:], "--help")
		r := console{}.run(t, args...)
		if r.code != 0 || r.err != "" {
			t.Errorf("%v: code %d, stderr %q", args, r.code, r.err)
		}
		golden.Compare(t, filepath.Join("help", strings.ReplaceAll(c.CommandPath(), " ", "-")), r.out)
		if c.Short == "" || c.Example == "" && c.Runnable() {
			t.Errorf("%s: short %q, example %q, want both", c.CommandPath(), c.Short, c.Example)
		}
		for line := range strings.Lines(c.Long + "\n" + c.Example) {
			if len(line) > 120 {
				t.Errorf("%s: a line of %d bytes: %q", c.CommandPath(), len(line), line)
			}
		}
		for _, below := range c.Commands() {
			if below.Name() != "help" && below.Name() != "config" && below.Name() != "exit-codes" {
				walk(below)
			}
		}
	}
	walk(newRoot(&app{}))
	for _, topic := range []string{"config", "exit-codes"} {
		golden.Compare(t, filepath.Join("help", topic), console{}.run(t, "help", topic).out)
	}
}

// What cannot be understood is said with the help that explains it, and changes nothing.
func TestUsage(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, command := range []string{
		"relai", "messages", "messages lsit", "dead --foo", "messages list extra", "relay --onse", "relay --interval-ms 0", "relay --window many", "status --server http://x", "status -o yaml",
		"help nosuch", "help dead nosuch", "messages list --limt 3", "messages list --attempts x", "migrate up --lock-timeout soon", "messages list --sink=", "dead list --key=",
		"dead requeue --key= --yes", "dead requeue " + id(1) + " --topic orders", "dead requeue --sink orders --limit 10001",
		"status", "relay", "dead requeue", "dead discard " + id(1), "dead discard", "dead requeue nonsense", "dead requeue " + id(1) + " --rate -1",
		"status --set database.url=mysql://db/x", "status --config testdata/no-such.yaml", "relay --config testdata/faulty.yaml",
		"status --set database.url=postgres://app:topsecret@:x/y",
		"demo --fail fire", "demo --for 10ms", "demo --for soon", "demo --rate 0", "demo --config onward.yaml", "demo extra",
	} {
		args := strings.Fields(command)
		r := console{}.run(t, args...)
		if strings.Contains(r.out+r.err, "topsecret") {
			t.Errorf("%s: says a secret: %q", command, r.out+r.err)
		}
		if command == "messages" { // shows its help
			continue
		}
		text.WriteString(session(args, r))
	}
	golden.Compare(t, "usage", text.String())
}

// People ask for help and for the version in their own ways.
func TestHelpAndVersionAnyway(t *testing.T) {
	t.Parallel()
	about := console{}.run(t, "relay", "--help")
	for _, args := range [][]string{{"help", "relay"}, {"-h", "relay"}, {"--help", "relay"}} {
		if r := (console{}).run(t, args...); r != about {
			t.Errorf("%v: got %+v, want the help of relay", args, r)
		}
	}
	if r := (console{}).run(t, "--version"); r.code != exitDone || r.out != "onward "+version().Version+"\n" {
		t.Errorf("--version: got %+v", r)
	}
}

func TestTheConfigurationFileIsFound(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "some.yaml")
	if err := os.WriteFile(file, []byte("relay: {nonsense: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]ran{
		"--config":       console{}.run(t, "status", "--config", file),
		"ONWARD_CONFIG":  console{environ: []string{"ONWARD_CONFIG=" + file}}.run(t, "status"),
		"flag before it": console{environ: []string{"ONWARD_CONFIG=/none.yaml"}}.run(t, "status", "--config", file),
	} {
		if r.code != exitUsage || !strings.Contains(r.err, "some.yaml:1:9: relay.nonsense: unknown key") {
			t.Errorf("%s: got %+v", name, r)
		}
	}
}

// A server that cannot be reached is 5, and no secret is said.
func TestADatabaseThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	c := console{environ: []string{"ONWARD_DATABASE__URL=postgres://app:topsecret@127.0.0.1:1/shop"}}
	for _, command := range []string{"status", "messages list", "dead list", "partitions list", "relays list", "migrate up", "migrate status", "migrate validate", "dead requeue " + id(1)} {
		r := c.run(t, strings.Fields(command)...)
		if r.code != exitUnreachable || strings.Contains(r.err, "topsecret") || !strings.Contains(r.err, "postgres://app:***@127.0.0.1:1/shop") || r.out != "" {
			t.Errorf("%s: got %+v", command, r)
		}
		if strings.Contains(r.err, "migrat") != strings.HasPrefix(command, "migrate ") && command != "migrate validate" {
			t.Errorf("%s: speaks of what nobody asked about: %s", command, r.err)
		}
	}
}

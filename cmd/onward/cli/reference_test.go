package cli

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/cmd/onward/internal/golden"
	"github.com/onwardhq/onward/outbox"
)

const root = "../../.." // of the repository

const generated = "<!-- Written by `make generate`. -->\n\n"

// The references are what the program says of itself: `make generate` writes them.
func TestReferences(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"configuration": configurationPage(t), "commands": commandsPage(), "errors": errorsPage(),
	} {
		golden.File(t, filepath.Join(root, "docs", name+".md"), text)
	}
}

// A code that nobody has explained is a riddle to whoever meets it; one that is explained and not used is one that is missed.
func TestEveryErrorCodeIsExplained(t *testing.T) {
	t.Parallel()
	inSource, explained := codesOfSource(t), map[string]bool{}
	for _, c := range codes {
		explained[c.code] = true
		if c.means == "" || c.do == "" || c.from == "" {
			t.Errorf("%s: incomplete: %+v", c.code, c)
		}
	}
	for code, file := range inSource {
		if !explained[code] {
			t.Errorf("onward/%s of %s has no explanation: add it to codes in codes_test.go", code, file)
		}
	}
	for code := range explained {
		if inSource[code] == "" {
			t.Errorf("onward/%s is explained, and no source has it", code)
		}
	}
	if !slices.IsSortedFunc(codes, func(a, b code) int { return strings.Compare(a.code, b.code) }) {
		t.Error("codes are not in their order")
	}
}

var codeText = regexp.MustCompile(`["']onward/([a-z-]+)["']`)

// codesOfSource finds the codes, each with a file that has it. Tests and suites make up some.
func codesOfSource(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == ".dev" || name == "e2e" || name == "examples" || name == "storetest" || name == "brokertest"):
			return filepath.SkipDir
		case entry.IsDir() || strings.HasSuffix(name, "_test.go") || !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".sql"):
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // of the repository
		for _, match := range codeText.FindAllStringSubmatch(string(text), -1) {
			found[match[1]], _ = filepath.Rel(root, path)
		}
		return err
	})
	if err != nil || len(found) < 20 {
		t.Fatalf("%d codes, %v", len(found), err)
	}
	return found
}

func errorsPage() string {
	var b strings.Builder
	b.WriteString("# Error codes\n\n" + generated + "Every error of Onward names a stable code: the same text in Go (`outbox.CodeOf(err)`, `errors.Is` with the `Err...` values), in SQL, on the command line and in the log. Most come with a hint that says what to do (`outbox.Hint(err)`; `hint:` on the command line). The last column is how the program exits for it; a code without one is of messages and logs alone.\n\n")
	b.WriteString("| code | where | what it means | what to do | exit |\n|---|---|---|---|---|\n")
	for _, c := range codes {
		exit := ""
		if n, ok := exitByCode[outbox.Code("onward/"+c.code)]; ok {
			exit = fmt.Sprint(n)
		} else if n := exitCode(&outbox.Error{Code: outbox.Code("onward/" + c.code)}); n != exitFailed {
			exit = fmt.Sprint(n)
		}
		fmt.Fprintf(&b, "| `onward/%s` | %s | %s | %s | %s |\n", c.code, c.from, c.means, c.do, exit)
	}
	return b.String()
}

func commandsPage() string {
	var b strings.Builder
	b.WriteString("# Commands\n\n" + generated + "What `--help` says of each command; [the command line](cli.md) says what scripts may rely on, `onward help config` and [configuration](configuration.md) list the settings.\n\n")
	top := newRoot(&app{})
	b.WriteString("## Flags of all commands\n\n")
	b.WriteString(flagsTable(top.PersistentFlags()))
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "config" || c.Name() == "exit-codes" {
			return
		}
		if c.HasParent() && c.Runnable() && !c.HasSubCommands() {
			fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n```\n%s\n```\n\n", c.CommandPath(), c.Short, c.UseLine())
			if c.Long != "" {
				b.WriteString(strings.ReplaceAll(strings.TrimSpace(c.Long), "\n  ", "\n    ") + "\n\n")
			}
			b.WriteString(flagsTable(c.NonInheritedFlags()))
			if c.Example != "" {
				b.WriteString("\n```console\n" + strings.ReplaceAll(c.Example, "\n  ", "\n")[2:] + "\n```\n")
			}
		}
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	walk(top)
	return b.String()
}

func flagsTable(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if b.Len() == 0 {
			b.WriteString("| flag | default | what it does |\n|---|---|---|\n")
		}
		name, usage := pflag.UnquoteUsage(f)
		flag := "--" + f.Name
		if f.Shorthand != "" {
			flag = "-" + f.Shorthand + ", " + flag
		}
		def := f.DefValue
		if def == "[]" || def == "false" || def == "0" {
			def = ""
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.TrimSpace(flag+" "+name), def, strings.ReplaceAll(usage, "|", `\|`))
	})
	return b.String()
}

func configurationPage(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Configuration\n\n" + generated + "Settings come from a YAML file (`--config`, or `$ONWARD_CONFIG`, or `onward.yaml` in the working directory), then from the environment, then from `--set path=value`; the later ones win. [`examples/onward.yaml`](../examples/onward.yaml) is a file to start from, [the command line](cli.md#configuration) says more. `[]` and `__0__` are the first of a list, `1` the next. Those marked * are secrets: the variable with `_FILE` behind it names a file that has it.\n\n")
	b.WriteString("Durations are written `20ms`, `15s`, `10m`, `24h` or `30d`, sizes `4096`, `512KiB`, `16MiB` or `1MB`. A key that is not in this list is refused, with its line.\n\n")
	b.WriteString("| key | default | limits | environment | what it does |\n|---|---|---|---|---|\n")
	for _, s := range config.Settings() {
		path := s.Path
		if s.Secret {
			path += " *"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` | %s |\n", strings.ReplaceAll(path, " *", "` *`"), s.Default, limits(t, s), variable(s.Path), strings.ReplaceAll(s.Note, "|", `\|`))
	}
	return strings.ReplaceAll(b.String(), " *`` |", " * |")
}

func variable(path string) string {
	return config.Prefix + strings.ToUpper(strings.NewReplacer("[]", "__0", ".", "__").Replace(path))
}

var limitText = regexp.MustCompile(`the (?:least|most) is [^\s:;,]+|must be longer than 0|more than a third of relay.lease|is not one of (.*)|is not an identifier: (.*)`)

// limits are what the check of the configuration says to values that cannot be.
func limits(t *testing.T, s config.Setting) string {
	t.Helper()
	path := strings.NewReplacer("sinks[]", "sinks[0]", "topics[]", "topics[0]").Replace(s.Path)
	found := map[string]bool{}
	for _, value := range []string{"0", "0s", "1", "-1", "-1s", "1000000000", "8000h", "no such word!", "[no such word!]"} {
		_, err := config.Load(config.Source{Need: config.NeedRelay, Set: []string{
			"database.url=postgres://u@h/d", "sinks[0].name=a", "sinks[0].url=nats://h", "sinks[0].nats.stream=S", "topics[0].match=t", path + "=" + value,
		}})
		if err == nil {
			continue
		}
		for _, match := range limitText.FindAllStringSubmatch(faultsText(err, path), -1) {
			switch {
			case match[1] != "":
				found["one of "+match[1]] = true
			case match[2] != "":
				found[match[2]] = true
			default:
				found[strings.TrimPrefix(match[0], "must be ")] = true
			}
		}
	}
	return strings.ReplaceAll(strings.Join(slices.Sorted(maps.Keys(found)), "; "), "more than a third", "at most a third")
}

// faultsText is what is wrong with one setting.
func faultsText(err error, path string) string {
	var b strings.Builder
	text := strings.TrimSuffix(err.Error(), " ("+string(outbox.ErrConfigInvalid.Code)+")")
	for line := range strings.Lines(strings.ReplaceAll(text, "; ", "\n")) {
		if strings.Contains(line, path+": ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

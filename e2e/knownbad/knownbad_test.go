package knownbad

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func builds(t *testing.T) []Build {
	t.Helper()
	all, err := Load("builds")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A patch that no longer fits would test nothing: whoever changes the line that it is about changes it as well.
func TestEachBadBuildStillApplies(t *testing.T) {
	t.Parallel()
	all := builds(t)
	if len(all) < 20 {
		t.Errorf("%d bad builds, want 20 at the least", len(all))
	}
	for _, b := range all {
		if _, err := b.Patched(root); err != nil {
			t.Error(err)
		}
	}
}

// docs/proof/known-bad.json tells of the bad builds as they are: who changes one runs make known-bad.
func TestTheTableIsOfTheBadBuildsThatThereAre(t *testing.T) {
	t.Parallel()
	report, err := LoadReport(filepath.Join(root, "docs", "proof", "known-bad.json"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]Build{}
	for _, b := range builds(t) {
		all[b.Name] = b
	}
	for _, r := range report.Builds {
		b, known := all[r.Name]
		delete(all, r.Name)
		if !known {
			t.Errorf("the table has %s, which is no bad build", r.Name)
			continue
		}
		if r.Promise != b.Promise || r.Says != b.Says || len(r.Caught) != len(b.Checks) {
			t.Errorf("%s is another one in the table", b.Name)
		}
		for _, c := range r.Caught {
			if len(c.Tests) == 0 || c.Said == "" {
				t.Errorf("%s: the table does not say what caught it", b.Name)
			}
		}
	}
	for name := range all {
		t.Errorf("%s is not in the table", name)
	}
}

// The bad builds whose checks need no server, all of them at each change; but for the simulator, which takes its time.
func TestBadBuildsOfTheCoreAreCaught(t *testing.T) {
	t.Parallel()
	var quick []Build
	for _, b := range builds(t) {
		b.Checks = slices.DeleteFunc(b.Checks, func(c Check) bool { return c.By == "simulator" })
		if !b.Servers {
			quick = append(quick, b)
		}
	}
	var checks []Check
	for _, b := range quick {
		checks = append(checks, b.Checks...)
	}
	if err := Baseline(t.Context(), root, checks); err != nil {
		t.Fatal(err)
	}
	for _, b := range quick {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			r, err := b.Catch(t.Context(), root, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range r.Caught {
				t.Logf("%s of %s: %s: %s", c.By, c.Package, strings.Join(c.Tests, " "), c.Said)
			}
		})
	}
}

func TestAPatchMustStandInItsFileOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("one\ntwo\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	head := "promise: 1\nsays: x\ncheck: script ./a ^T$\n\n@@ a.go\n"
	for patch, want := range map[string]string{
		" one\n-two\n+TWO\n": "one\nTWO\ntwo\nthree\n",
		"-two\n-three\n+2\n": "one\ntwo\n2\n",
		"-two\n+TWO\n":       "stands in a.go 2 times",
		"-four\n+five\n":     "stands in a.go 0 times",
		"-two\n+two\n":       "changes nothing",
		"+two\n":             "finds nothing",
		"*two\n":             "want a blank, a minus or a plus",
	} {
		got := ""
		b, err := Parse("a", head+patch)
		if err == nil {
			var files map[string]string
			files, err = b.Patched(dir)
			got = files["a.go"]
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q gives %q, want %q", patch, got, want)
		}
	}
	for text, want := range map[string]string{
		"promise: 1\n":                     "lacks",
		"check: nobody ./a ^T$\n":          "want a machine",
		"check: script ./a\n":              "want a machine",
		"needs: luck\n":                    "want servers",
		"whose: mine\n":                    "want promise",
		"promise: 1\nsays: x\n\n@@ a.go\n": "lacks a check",
	} {
		if _, err := Parse("a", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// The ways in which a bad build may seem to be caught and is not: it does not compile, it panics, its check does not exist, or
// fails without it.
func TestOnlyAFailedTestCatches(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/m\n\ngo 1.25.0\n")
	write("m.go", "package m\n\nfunc two() int { return 2 }\n")
	write("m.txt", "text\n")
	write("m_test.go", `package m

import (
	_ "embed"
	"testing"
)

//go:embed m.txt
var text string

func TestTwo(t *testing.T) {
	if two() != 2 {
		t.Errorf("two is %d", two())
	}
	if text != "text\n" {
		t.Errorf("the text is %q", text)
	}
}

func TestFails(t *testing.T) { t.Error("always") }
`)
	for _, c := range []struct{ name, check, edit, want string }{
		{"a failure", "^TestTwo$", "m.go\n-func two() int { return 2 }\n+func two() int { return 3 }\n", "caught: two is 3"},
		{"a failure by an embedded file", "^TestTwo$", "m.txt\n-text\n+other\n", `caught: the text is "other\n"`},
		{"no failure", "^TestTwo$", "m.go\n-func two() int { return 2 }\n+func two() int { return 1 + 1 }\n", "NOT CAUGHT"},
		{"does not compile", "^TestTwo$", "m.go\n-func two() int { return 2 }\n+func two() int { return x }\n", "does not compile"},
		{"panics", "^TestTwo$", "m.go\n-func two() int { return 2 }\n+func two() int { panic(2) }\n", "panics instead of failing"},
		{"no such test", "^TestThree$", "m.go\n-func two() int { return 2 }\n+func two() int { return 3 }\n", "has no test ^TestThree$"},
		{"fails without it", "^TestFails$", "m.go\n-func two() int { return 2 }\n+func two() int { return 3 }\n", "fails without any patch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, err := Parse("x", "promise: 1\nsays: x\ncheck: script . "+c.check+" GOWORK=off\n\n@@ "+c.edit)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if err = Baseline(t.Context(), dir, b.Checks); err == nil {
				var r Result
				if r, err = b.Catch(t.Context(), dir, t.TempDir()); err == nil {
					got = "caught: " + r.Caught[0].Said
				}
			}
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

package house

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	specified = regexp.MustCompile(`(?m)^\t\{"([A-Z]\w+)", `)
	aSpec     = regexp.MustCompile("`storetest/([^`.]*)`")
	aFile     = regexp.MustCompile("`([A-Za-z][\\w-]*/[\\w./-]+\\.(?:go|sql|md|yaml|txt|golden))`")
	aVariable = regexp.MustCompile(`\bONWARD_(?:E2E|BENCH|TEST)_\w+`)
	aRow      = regexp.MustCompile(`(?m)^\| ([A-Z]\d+) \|(.*)\|$`)
	// inFolder is how a page says where tests are: the folder of their package, then their names.
	inFolder = regexp.MustCompile("([a-z][\\w/]*): ((?:`(?:Test|Benchmark|Fuzz|Example)[A-Z]\\w+`(?:, )?)+)")
)

// proofs are the pages whose every row stands on a test: on them a test is named with its folder.
var proofs = []string{"docs/coverage.md", "docs/guarantees.md", "docs/failover.md", "docs/postgres.md", "docs/sqlite.md", "docs/chaos.md"}

// statements are the ids that docs/coverage.md has to have, each once: letter and highest number.
var statements = map[string]int{"F": 55, "P": 28, "V": 36, "I": 28, "W": 22, "C": 55}

func page(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A statement that is there twice may be shown by one row and not by the other.
func TestCoverageHasEachStatementOnce(t *testing.T) {
	t.Parallel()
	rows := map[string]int{}
	for _, row := range aRow.FindAllStringSubmatch(page(t, "docs/coverage.md"), -1) {
		rows[row[1]]++
		cells := strings.Split(row[2], "|")
		if len(cells) != 3 {
			t.Errorf("%s has %d cells after its id, want what, shown by, missing", row[1], len(cells))
			continue
		}
		if shown, missing := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2]); shown == "" && missing == "" {
			t.Errorf("%s is neither shown nor said to be missing", row[1])
		}
	}
	for letter, highest := range statements {
		for n := 1; n <= highest; n++ {
			id := fmt.Sprint(letter, n)
			if rows[id] != 1 {
				t.Errorf("docs/coverage.md has %s %d times, want once", id, rows[id])
			}
			delete(rows, id)
		}
	}
	for id := range rows {
		t.Errorf("docs/coverage.md has %s, which is no statement", id)
	}
}

// Each test of a page that proves something is in the folder that the page names, so that a reader can run it.
func TestProofsNameTestsWithTheirFolder(t *testing.T) {
	t.Parallel()
	in := map[string][]string{} // folder to names
	walk(t, "_test.go", func(path, text string) {
		folder := filepath.ToSlash(filepath.Dir(path))
		for _, match := range declared.FindAllStringSubmatch(text, -1) {
			in[folder] = append(in[folder], match[1])
		}
	})
	for _, path := range proofs {
		text := page(t, path)
		located := 0
		for _, group := range inFolder.FindAllStringSubmatch(text, -1) {
			for _, name := range named.FindAllStringSubmatch(group[2], -1) {
				if located++; !slices.Contains(in[group[1]], name[1]) {
					t.Errorf("%s: %s has no %s", path, group[1], name[1])
				}
			}
		}
		if all := len(named.FindAllString(text, -1)); all != located || all == 0 {
			t.Errorf("%s names %d tests, %d of them behind their folder", path, all, located)
		}
	}
}

// What pages name of the conformance suite, of files, and of variables that make a run larger, exists.
func TestWhatPagesNameExists(t *testing.T) {
	t.Parallel()
	specs, code := map[string]bool{}, ""
	walk(t, ".go", func(path, text string) {
		if filepath.ToSlash(filepath.Dir(path)) == "store/storetest" {
			for _, match := range specified.FindAllStringSubmatch(text, -1) {
				specs[match[1]] = true
			}
		}
		if !strings.HasPrefix(path, filepath.Join("e2e", "house")) {
			code += text
		}
	})
	for _, script := range []string{"dev/services", "dev/services.d/postgres.sh", "dev/services.d/nats.sh"} {
		code += page(t, script)
	}
	found := 0
	walk(t, ".md", func(path, text string) {
		for _, match := range aSpec.FindAllStringSubmatch(text, -1) {
			if found++; !specs[match[1]] {
				t.Errorf("%s names storetest/%s, which is no spec of the suite", path, match[1])
			}
		}
		for _, match := range aFile.FindAllStringSubmatch(text, -1) {
			_, below := os.Stat(filepath.Join("..", "..", filepath.Dir(path), match[1]))
			if _, err := os.Stat(filepath.Join("..", "..", match[1])); err != nil && below != nil {
				t.Errorf("%s names %s, which is not there", path, match[1])
			}
			found++
		}
		for _, variable := range aVariable.FindAllString(text, -1) {
			if found++; !regexp.MustCompile(variable + `\b`).MatchString(code) {
				t.Errorf("%s names %s, which nothing reads", path, variable)
			}
		}
	})
	if found == 0 {
		t.Error("no page names a spec, a file or a variable")
	}
}

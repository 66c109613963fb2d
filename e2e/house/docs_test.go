package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	named    = regexp.MustCompile("`((?:Test|Benchmark|Fuzz|Example)[A-Z]\\w+)`")
	declared = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)[A-Z]\w+)\(`)
	linked   = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

// walk calls visit with each file of the repository that ends so, its path below the root, and its text.
func walk(t *testing.T, ending string, visit func(path, text string)) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == ".dev"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ending):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(root, path)
		visit(below, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A page that proves a promise with a test's name proves nothing once the test has another one.
func TestTestsThatPagesNameExist(t *testing.T) {
	t.Parallel()
	exists := map[string]bool{}
	walk(t, "_test.go", func(_, text string) {
		for _, match := range declared.FindAllStringSubmatch(text, -1) {
			exists[match[1]] = true
		}
	})
	found := 0
	walk(t, ".md", func(path, text string) {
		for _, match := range named.FindAllStringSubmatch(text, -1) {
			if found++; !exists[match[1]] {
				t.Errorf("%s names %s, which is no test", path, match[1])
			}
		}
	})
	if found == 0 {
		t.Error("no page names a test")
	}
}

func TestLinksBetweenPagesLead(t *testing.T) {
	t.Parallel()
	found := 0
	walk(t, ".md", func(path, text string) {
		for _, match := range linked.FindAllStringSubmatch(text, -1) {
			target := filepath.Join("..", "..", filepath.Dir(path), match[1])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links %s, which is not there", path, match[1])
			}
			found++
		}
	})
	if found == 0 {
		t.Error("no page has a link")
	}
}

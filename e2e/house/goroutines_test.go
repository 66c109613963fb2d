package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goroutines are what the files of a package say about them.
type goroutines struct {
	starts  string // where it starts one
	suite   bool   // it is used by tests alone
	checked bool   // its tests fail where goroutines are left
}

// afters start a goroutine without a go statement.
var afters = []string{"time.AfterFunc", "context.AfterFunc"}

func (g *goroutines) look(set *token.FileSet, file *ast.File, isTest bool) {
	for _, spec := range file.Imports {
		g.suite = g.suite || !isTest && spec.Path.Value == `"testing"`
		// The suites start goroutines in the name of what they test.
		if isTest && (strings.HasSuffix(spec.Path.Value, `/store/storetest"`) || strings.HasSuffix(spec.Path.Value, `/broker/brokertest"`)) {
			g.starts = set.Position(spec.Pos()).String()
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		selected := ""
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				selected = x.Name + "." + s.Sel.Name
			}
		}
		_, statement := n.(*ast.GoStmt)
		switch {
		case isTest:
			g.checked = g.checked || selected == "leaktest.Main"
		case statement || slices.Contains(afters, selected):
			g.starts = set.Position(n.Pos()).String()
		}
		return true
	})
}

// A goroutine that nobody ends is memory, a connection or a lease that nobody gives back, and no other test sees it.
func TestPackagesWithGoroutinesCheckThatTheyEnd(t *testing.T) {
	t.Parallel()
	packages := map[string]*goroutines{}
	walk(t, ".go", func(path, text string) {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		folder := filepath.ToSlash(filepath.Dir(path))
		if packages[folder] == nil {
			packages[folder] = &goroutines{}
		}
		packages[folder].look(set, file, strings.HasSuffix(path, "_test.go"))
	})
	found := 0
	for folder, g := range packages {
		if g.starts == "" || g.suite && !g.checked {
			continue
		}
		if found++; !g.checked {
			t.Errorf("%s starts goroutines (%s), and no TestMain of its tests is: os.Exit(leaktest.Main(m))", folder, g.starts)
		}
	}
	if found < 10 {
		t.Errorf("%d packages with goroutines were found, and there are more", found)
	}
}

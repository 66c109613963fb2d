package house

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// Root is the path of the root module; every package and module of ours begins with it.
const Root = "github.com/onwardhq/onward"

// An Allowance is what a package of the root module, or each package of another module, may import. The standard library is
// always allowed, and so are, but for the root, packages of the same module.
type Allowance struct {
	// Ours are packages of this repository, as paths below the root module, in what is shipped.
	Ours []string
	// Theirs are modules of others that may be linked into what is shipped, directly or through another of them.
	Theirs []string
	// Tests are further packages of ours, and modules of others, that only tests may import.
	Tests []string
}

// A pkg is what `go list` tells about one package.
type pkg struct {
	ImportPath, ForTest                string
	Imports, TestImports, XTestImports []string
	Standard                           bool
	Module                             *struct{ Path string }
}

// listPackages lists the packages of the module in dir, with all that they and their tests depend on.
func listPackages(ctx context.Context, dir string) (map[string]pkg, error) {
	list := exec.CommandContext(ctx, "go", "list", "-deps", "-test",
		"-json=ImportPath,ForTest,Imports,TestImports,XTestImports,Standard,Module", "./...")
	list.Dir = dir
	var words bytes.Buffer
	list.Stderr = &words
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w: %s", dir, err, words.String())
	}
	packages := map[string]pkg{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list in %s: %w", dir, err)
		}
		// A package compiled again for a test, and a test's main package, say nothing about who imports what.
		if p.ForTest == "" && !strings.HasSuffix(p.ImportPath, ".test") {
			packages[p.ImportPath] = p
		}
	}
}

// violations compares the packages of one module with the allow-list. Its keys are paths below the root module: of single
// packages for the root module itself, of modules else.
func violations(module string, packages map[string]pkg, allowed map[string]Allowance) []string {
	var found []string
	for _, p := range packages {
		if p.Module == nil || p.Module.Path != module {
			continue
		}
		name := below(module)
		if module == Root {
			name = below(p.ImportPath)
		}
		allowance, known := allowed[name]
		if !known {
			found = append(found, fmt.Sprintf("%s is not in the allow-list: say what it may import", p.ImportPath))
			continue
		}
		found = append(found, check{packages, module, p}.against(allowance)...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// below is the package's path below the root module, or "" if it is not ours.
func below(path string) string {
	if name, ours := strings.CutPrefix(path, Root+"/"); ours {
		return name
	}
	return ""
}

// A check is about one package of the module.
type check struct {
	packages map[string]pkg
	module   string
	pkg
}

func (c check) against(allowed Allowance) (found []string) {
	for _, path := range c.linked() {
		if !c.permits(path, allowed.Theirs) {
			found = append(found, fmt.Sprintf("%s links %s", c.ImportPath, path))
		}
	}
	for _, path := range c.Imports {
		if below(path) != "" && !c.permits(path, allowed.Ours) {
			found = append(found, fmt.Sprintf("%s imports %s", c.ImportPath, path))
		}
	}
	inTests := slices.Concat(allowed.Ours, allowed.Theirs, allowed.Tests)
	for _, path := range slices.Concat(c.TestImports, c.XTestImports) {
		if path != c.ImportPath && !c.permits(path, inTests) {
			found = append(found, fmt.Sprintf("a test of %s imports %s", c.ImportPath, path))
		}
	}
	return found
}

// linked lists the packages of others that are compiled into this one, however they come in.
func (c check) linked() []string {
	var theirs []string
	seen := map[string]bool{}
	for todo := slices.Clone(c.Imports); len(todo) > 0; {
		path := todo[0]
		todo = todo[1:]
		if p := c.packages[path]; !seen[path] && !p.Standard {
			seen[path] = true
			todo = append(todo, p.Imports...)
			if below(path) == "" {
				theirs = append(theirs, path)
			}
		}
	}
	return theirs
}

// permits tells whether the list names the package (ours) or its module (theirs).
func (c check) permits(path string, allowed []string) bool {
	p := c.packages[path]
	if p.Standard || path == "C" {
		return true
	}
	if p.Module != nil && p.Module.Path == c.module && c.module != Root {
		return true
	}
	if name := below(path); name != "" {
		return slices.Contains(allowed, name)
	}
	return p.Module != nil && slices.Contains(allowed, p.Module.Path)
}

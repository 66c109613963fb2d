// Package knownbad builds the program with a fault that is known, and asks whether what proves the promises finds it. A
// bad build is a small patch in builds/, laid over the sources by `go test -overlay`: nothing of it is in the product.
package knownbad

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Build is one bad build.
type Build struct {
	Name    string  // of its file, without .bad
	Promise string  // the number of the promise that it breaks (docs/guarantees.md), or "cost"
	Says    string  // what is wrong with it
	Servers bool    // its checks need PostgreSQL or JetStream
	Checks  []Check // each must pass without the patch and fail with it
	Edits   []Edit
}

// Check is a test that must find the fault.
type Check struct {
	By      string // the machine: simulator, world, script, conformance, rules, figure
	Package string // ./relay/core
	Run     string // of go test -run
	Env     []string
}

// Edit replaces a text of a file.
type Edit struct {
	File     string // below the repository's root, with slashes
	Old, New string
}

// machines are what may find a bad build: the seeded simulator of several relays; the unreliable world around one machine,
// seeded as well; scripts of single rules of the machine; the conformance suites of stores and brokers; servers that die, are
// promoted or restored under relays and writers that are processes; relays that end or stand still at marked lines; the rules of one store; and tests that count what something
// costs.
var machines = []string{"simulator", "world", "script", "conformance", "disaster", "failpoints", "rules", "figure"}

// Load reads every bad build of a folder, by name.
func Load(folder string) ([]Build, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.bad"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("there are no bad builds in %s", folder)
	}
	var builds []Build
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		b, err := Parse(strings.TrimSuffix(filepath.Base(file), ".bad"), string(text))
		if err != nil {
			return nil, err
		}
		builds = append(builds, b)
	}
	return builds, nil
}

// Parse reads a bad build: lines of "word: value", and then its edits. An edit begins with "@@ file"; its lines begin with
// a blank (as it is), a minus (only in the product) or a plus (only in the bad build), as in a patch without numbers. What
// the first two give must stand in the file exactly once.
func Parse(name, text string) (Build, error) {
	b := Build{Name: name}
	var edit *Edit
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		file, begins := strings.CutPrefix(line, "@@ ")
		var err error
		switch {
		case begins:
			b.Edits = append(b.Edits, Edit{File: strings.TrimSpace(file)})
			edit = &b.Edits[len(b.Edits)-1]
		case edit != nil:
			err = edit.add(line)
		default:
			err = b.head(line)
		}
		if err != nil {
			return b, fmt.Errorf("%s.bad:%d: %w", name, i+1, err)
		}
	}
	if err := b.check(); err != nil {
		return b, fmt.Errorf("%s.bad: %w", name, err)
	}
	return b, nil
}

func (e *Edit) add(line string) error {
	if line == "" {
		line = " "
	}
	text := line[1:] + "\n"
	switch line[0] {
	case ' ':
		e.Old += text
		e.New += text
	case '-':
		e.Old += text
	case '+':
		e.New += text
	default:
		return fmt.Errorf("a line of an edit begins with %q: want a blank, a minus or a plus", line[:1])
	}
	return nil
}

func (b *Build) head(line string) error {
	word, value, _ := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	switch word {
	case "":
	case "promise":
		b.Promise = value
	case "says":
		b.Says = value
	case "needs":
		if b.Servers = value == "servers"; !b.Servers {
			return fmt.Errorf("needs: %q, want servers", value)
		}
	case "check":
		fields := strings.Fields(value)
		if len(fields) < 3 || !slices.Contains(machines, fields[0]) {
			return fmt.Errorf("check: %q, want a machine (%s), a package, a pattern of tests and perhaps variables", value, strings.Join(machines, ", "))
		}
		b.Checks = append(b.Checks, Check{By: fields[0], Package: fields[1], Run: fields[2], Env: fields[3:]})
	default:
		return fmt.Errorf("%q, want promise, says, needs, check or an edit", line)
	}
	return nil
}

func (b *Build) check() error {
	var faults []error
	for what, missing := range map[string]bool{
		"a promise": b.Promise == "", "what it says": b.Says == "", "a check": len(b.Checks) == 0, "an edit": len(b.Edits) == 0,
	} {
		if missing {
			faults = append(faults, fmt.Errorf("it lacks %s", what))
		}
	}
	for _, e := range b.Edits {
		if e.Old == e.New || e.Old == "" {
			faults = append(faults, fmt.Errorf("an edit of %s changes nothing, or finds nothing", e.File))
		}
	}
	return errors.Join(faults...)
}

// Patched returns the files that the bad build changes, as it has them, by path below root. A text that does not stand in
// its file exactly once is an error: the product has moved on, and the patch has to follow.
func (b *Build) Patched(root string) (map[string]string, error) {
	files := map[string]string{}
	for _, e := range b.Edits {
		text, known := files[e.File]
		if !known {
			content, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.File)))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.Name, err)
			}
			text = string(content)
		}
		if n := strings.Count(text, e.Old); n != 1 {
			return nil, fmt.Errorf("%s: this stands in %s %d times, want once:\n%s", b.Name, e.File, n, e.Old)
		}
		files[e.File] = strings.Replace(text, e.Old, e.New, 1)
	}
	return files, nil
}

// Overlay writes the changed files into dir, and beside them the file for -overlay, whose path it returns.
func (b *Build) Overlay(root, dir string) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	files, err := b.Patched(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for i, file := range slices.Sorted(maps.Keys(files)) {
		changed := filepath.Join(dir, fmt.Sprintf("%d-%s", i, filepath.Base(file)))
		if err := os.WriteFile(changed, []byte(files[file]), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, filepath.FromSlash(file))] = changed
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

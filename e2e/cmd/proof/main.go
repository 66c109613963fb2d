// Command proof writes docs/proof.md from the figures that the harnesses left in docs/proof: nothing in the page that can be counted
// is written by hand.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

//go:generate go run . -docs ../../../docs

func main() {
	docs := flag.String("docs", "docs", "the `folder` of the page; the figures are in proof/ below it")
	flag.Usage = func() {
		_, _ = fmt.Fprint(flag.CommandLine.Output(), "proof writes proof.md from proof/*.json and proof/page.tmpl. make proof measures first.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	page, err := Page(filepath.Join(*docs, "proof"))
	if err == nil {
		err = os.WriteFile(filepath.Join(*docs, "proof.md"), page, 0o644) //nolint:gosec // a page for everybody
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		os.Exit(1)
	}
}

// figures are a harness's report; an empty one was not run.
type figures map[string]any

// Get returns a figure by its path, with the names of objects: Get "verdict" "lost". What is not there is a dash.
func (f figures) Get(path ...string) any {
	var v any = map[string]any(f)
	for _, name := range path {
		object, ok := v.(map[string]any)
		if !ok {
			return "-"
		}
		v = object[name]
	}
	switch v := v.(type) {
	case nil:
		return "-"
	case json.Number:
		if last := path[len(path)-1]; last == "seed" || last == "from" { // to be copied into a command
			return v.String()
		}
		return grouped(v)
	}
	return v
}

// grouped is a number as people read it: 1,234,567.
func grouped(n json.Number) string {
	text := n.String()
	if _, err := n.Int64(); err != nil {
		v, _ := n.Float64()
		return fmt.Sprintf("%.1f", v)
	}
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Pairs are the members of an object in a line, the names in order.
func (f figures) Pairs(path ...string) string {
	var v any = map[string]any(f)
	for _, name := range path {
		object, _ := v.(map[string]any)
		v = object[name]
	}
	object, _ := v.(map[string]any)
	var words []string
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if n, ok := object[name].(json.Number); ok && n != "0" {
			words = append(words, fmt.Sprintf("%s %s", name, grouped(n)))
		}
	}
	return cmp.Or(strings.Join(words, ", "), "none")
}

// List are the objects of an array.
func (f figures) List(name string) (all []figures) {
	list, _ := f[name].([]any)
	for _, v := range list {
		if object, ok := v.(map[string]any); ok {
			all = append(all, object)
		}
	}
	return all
}

// Failures is how many runs broke a promise.
func (f figures) Failures() int { return len(f.List("failed")) }

// Words are the texts of an array, in one line.
func (f figures) Words(name string) string {
	list, _ := f[name].([]any)
	var words []string
	for _, v := range list {
		words = append(words, fmt.Sprint(v))
	}
	return strings.Join(words, ", ")
}

// Page is the page made of the figures in a folder.
func Page(folder string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(folder, "page.tmpl")) //nolint:gosec // the caller's own
	if err != nil {
		return nil, err
	}
	read := func(name string) (figures, error) { return readFigures(filepath.Join(folder, name+".json")) }
	t, err := template.New("page").Option("missingkey=error").Funcs(template.FuncMap{
		"figures": read,
		"reports": func(prefix string) (all []figures, err error) { return readReports(folder, prefix) },
	}).Parse(string(text))
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	if err := t.Execute(&page, nil); err != nil {
		return nil, err
	}
	return page.Bytes(), nil
}

func readFigures(file string) (f figures, err error) {
	text, err := os.ReadFile(file) //nolint:gosec // the caller's own
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // a seed has more digits than a float64 keeps
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return f, nil
}

// readReports reads the reports whose files' names begin with the prefix, in the order of the names.
func readReports(folder, prefix string) (all []figures, err error) {
	files, err := filepath.Glob(filepath.Join(folder, prefix+"*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		f, err := readFigures(file)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

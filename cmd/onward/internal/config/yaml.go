package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// reader walks a YAML document along the tree of settings.
type reader struct {
	file    string
	entries []entry
	faults  Faults
}

func readYAML(file string, text []byte) ([]entry, Faults) {
	r := &reader{file: filepath.Base(file)}
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, second yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil // an empty file
	case err != nil:
		return nil, Faults{{Place: r.file, Detail: err.Error()}}
	}
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		r.faults = append(r.faults, Fault{Place: r.file, Detail: "has more than one document: leave out what follows ---"})
	}
	r.walk(tree, doc.Content[0], nil)
	return r.entries, r.faults
}

func (r *reader) place(y *yaml.Node) place {
	return place{name: r.file + ":" + strconv.Itoa(y.Line) + ":" + strconv.Itoa(y.Column), line: y.Line, column: y.Column}
}

func (r *reader) fault(y *yaml.Node, steps []string, format string, args ...any) {
	r.faults = append(r.faults, r.place(y).fault(join(steps), fmt.Sprintf(format, args...)))
}

func (r *reader) walk(n *node, y *yaml.Node, steps []string) {
	if y.Kind == yaml.AliasNode {
		y = y.Alias
	}
	if y.Tag == "!!null" {
		return // "relay:" with nothing below it
	}
	switch {
	case n.kind == block && y.Kind == yaml.MappingNode:
		r.walkBlock(n, y, steps)
	case n.kind == list && y.Kind == yaml.SequenceNode:
		for i, child := range y.Content {
			below := append(slices.Clone(steps), strconv.Itoa(i))
			r.entries = append(r.entries, entry{steps: below, place: r.place(child), element: true})
			r.walk(n.below[""], child, below)
		}
	case n.kind == setting && y.Kind == yaml.ScalarNode:
		r.entries = append(r.entries, entry{steps: steps, text: y.Value, place: r.place(y)})
	case n.kind == setting && n.words && y.Kind == yaml.SequenceNode:
		var words strings.Builder
		for _, child := range y.Content {
			if child.Kind != yaml.ScalarNode {
				r.fault(child, steps, "wants a list of words")
				return
			}
			words.WriteString(child.Value + wordsEnd)
		}
		r.entries = append(r.entries, entry{steps: steps, text: words.String(), place: r.place(y)})
	case n.kind == block:
		r.fault(y, steps, "wants settings below it: %s", strings.Join(n.names, ", "))
	case n.kind == list:
		r.fault(y, steps, "wants a list: write - before each entry")
	default:
		r.fault(y, steps, "wants one value")
	}
}

func (r *reader) walkBlock(n *node, y *yaml.Node, steps []string) {
	seen := make(map[string]int)
	for i := 0; i+1 < len(y.Content); i += 2 {
		key, value := y.Content[i], y.Content[i+1]
		below := append(slices.Clone(steps), key.Value)
		if line, twice := seen[key.Value]; twice {
			r.fault(key, below, "is here twice: first in line %d", line)
			continue
		}
		seen[key.Value] = key.Line
		child := n.child(key.Value)
		if child == nil {
			r.fault(key, below, "unknown key, %s", suggest(n, steps, key.Value))
			r.faults[len(r.faults)-1].Unknown = true
			continue
		}
		r.walk(child, value, below)
	}
}

package config

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// Source is where settings come from.
type Source struct {
	File    string   // path of the YAML file; empty: none
	Environ []string // as os.Environ gives it
	Set     []string // "path=value" of --set
	Need    Need     // what is asked for, among the other faults
}

// Need is what a program cannot do without.
type Need uint8

// A command asks for no more than it uses.
const (
	NeedNothing  Need = iota
	NeedDatabase      // the database's URL
	NeedRelay         // the database's URL, and one sink with all that it needs
)

// entry is a setting that was made, or a list's entry that was begun (element).
type entry struct {
	steps   []string
	text    string
	place   place
	element bool
}

// place is where something was said; line 0: not in the file.
type place struct {
	name         string
	line, column int
}

func (p place) fault(path, detail string) Fault {
	return Fault{Place: p.name, Path: path, Detail: detail, line: p.line, column: p.column}
}

// Load reads all sources, the later ones winning, fills in the defaults and checks everything that can be checked without
// asking a server. The error names every fault; it is an *outbox.Error with Faults behind it.
func Load(s Source) (*Config, error) {
	var faults Faults
	c := &Config{places: make(map[string]place)}
	var entries []entry
	if s.File != "" {
		text, err := os.ReadFile(s.File)
		if err != nil {
			return nil, Faults{{Detail: err.Error()}}.err()
		}
		entries, faults = readYAML(s.File, text)
	}
	for _, layer := range []func() ([]entry, Faults){
		func() ([]entry, Faults) { return readEnviron(s.Environ) },
		func() ([]entry, Faults) { return readFlags(s.Set) },
	} {
		more, bad := layer()
		entries, faults = append(entries, more...), append(faults, bad...)
	}
	faults = append(faults, c.apply(entries)...)
	faults = append(faults, c.check(s.Need, faults)...)
	return c, faults.sorted().err()
}

// apply sets what was said, the last word of each setting, and the defaults of the rest.
func (c *Config) apply(entries []entry) (faults Faults) {
	last := make(map[string]int)
	for i, e := range entries {
		last[join(e.steps)] = i
	}
	for i, e := range entries {
		path := join(e.steps)
		if last[path] != i {
			continue
		}
		c.places[path] = e.place
		v := field(c, e.steps)
		if e.element {
			continue
		}
		if err := set(v, e.text); err != nil {
			if def := find(e.steps).def; def != "" {
				_ = set(v, def) // so that one fault does not make others
			}
			faults = append(faults, e.place.fault(path, err.Error()))
		}
	}
	faults = append(faults, c.gaps()...)
	c.fill(tree, nil)
	return faults
}

// gaps cuts lists off before the first entry that only a higher number made.
func (c *Config) gaps() (faults Faults) {
	whole := func(name string, n int) int {
		for i := range n {
			if !c.said(name + "[" + strconv.Itoa(i) + "]") {
				faults = append(faults, Fault{Path: name + "[" + strconv.Itoa(i) + "]", Detail: "is missing, although a later entry is set: they are numbered from 0"})
				return i
			}
		}
		return n
	}
	c.Sinks = c.Sinks[:whole("sinks", len(c.Sinks))]
	c.Topics = c.Topics[:whole("topics", len(c.Topics))]
	return faults
}

// said reports whether anything was said of a setting or of what is below it.
func (c *Config) said(path string) bool {
	for p := range c.places {
		if p == path || strings.HasPrefix(p, path+".") {
			return true
		}
	}
	return false
}

// fill sets the defaults of what nobody set.
func (c *Config) fill(n *node, steps []string) {
	switch n.kind {
	case setting:
		if _, made := c.places[join(steps)]; !made && n.def != "" {
			if err := set(field(c, steps), n.def); err != nil {
				panic(err) // a tag of Config that its own field refuses
			}
		}
	case list:
		for i := range field(c, steps).Len() {
			c.fill(n.below[""], append(slices.Clone(steps), strconv.Itoa(i)))
		}
	case block:
		for _, name := range n.names {
			c.fill(n.below[name], append(slices.Clone(steps), name))
		}
	}
}

// readFlags reads path=value pairs.
func readFlags(pairs []string) (entries []entry, faults Faults) {
	for _, pair := range pairs {
		path, value, ok := strings.Cut(pair, "=")
		at := "--set " + path
		if !ok {
			faults = append(faults, Fault{Place: at, Detail: "write --set path=value, for example --set relay.lease=30s"})
			continue
		}
		steps := strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) })
		if fault := resolve(steps, at); fault != nil {
			faults = append(faults, *fault)
			continue
		}
		entries = append(entries, entry{steps: steps, text: value, place: place{name: at}})
	}
	return entries, faults
}

// resolve refuses steps that do not lead to a setting.
func resolve(steps []string, at string) *Fault {
	n := tree
	for i, step := range steps {
		next := n.child(step)
		if next == nil {
			return &Fault{Place: at, Path: join(steps[:i+1]), Detail: "unknown key, " + suggest(n, steps[:i], step), Unknown: true}
		}
		n = next
	}
	if n.kind != setting {
		return &Fault{Place: at, Path: join(steps), Detail: "is not one setting: " + known(n)}
	}
	return nil
}

func known(n *node) string {
	if n.kind == list {
		return "name an entry by its number, from 0"
	}
	return "known below it: " + strings.Join(n.names, ", ")
}

package config

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// node is a place in the tree of settings: a block, a list of blocks, or one setting.
type node struct {
	kind   kind
	secret bool
	words  bool // a setting that may be a list in the file
	def    string
	note   string
	names  []string         // of a block, in order
	below  map[string]*node // of a block; of a list: the one block, under ""
}

type kind uint8

const (
	block kind = iota
	list
	setting
)

var tree = newNode(reflect.TypeFor[Config](), reflect.StructField{})

func newNode(t reflect.Type, f reflect.StructField) *node {
	n := &node{kind: setting, secret: f.Tag.Get("secret") != "", def: f.Tag.Get("default"), note: f.Tag.Get("note"), words: t == reflect.TypeFor[Words]()}
	if t.Kind() == reflect.Slice && t != reflect.TypeFor[Words]() {
		n.kind = list
		n.below = map[string]*node{"": newNode(t.Elem(), reflect.StructField{})}
	}
	if t.Kind() == reflect.Struct {
		n.kind = block
		n.below = make(map[string]*node)
		for i := range t.NumField() {
			field := t.Field(i)
			if name := field.Tag.Get("key"); name != "" {
				n.names = append(n.names, name)
				n.below[name] = newNode(field.Type, field)
			}
		}
	}
	return n
}

// child returns what a step (a name, or the number of a list's element) leads to, nil if nothing.
func (n *node) child(step string) *node {
	switch n.kind {
	case block:
		return n.below[step]
	case list:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < 1000 && strconv.Itoa(i) == step {
			return n.below[""]
		}
	case setting:
	}
	return nil
}

// Setting is one line of the list of settings.
type Setting struct {
	Path    string // "sinks[].retry.attempts"
	Default string
	Note    string
	Secret  bool
}

// Settings lists every setting, in the order of Config.
func Settings() []Setting {
	var all []Setting
	var walk func(n *node, path string)
	walk = func(n *node, path string) {
		switch n.kind {
		case setting:
			all = append(all, Setting{Path: path, Default: n.def, Note: n.note, Secret: n.secret})
		case list:
			walk(n.below[""], path+"[]")
		case block:
			for _, name := range n.names {
				walk(n.below[name], strings.TrimPrefix(path+"."+name, "."))
			}
		}
	}
	walk(tree, "")
	return all
}

// join writes steps as people do: sinks[0].url.
func join(steps []string) string {
	var b strings.Builder
	for i, s := range steps {
		switch _, err := strconv.Atoi(s); {
		case err == nil:
			b.WriteString("[" + s + "]")
		case i > 0:
			b.WriteString("." + s)
		default:
			b.WriteString(s)
		}
	}
	return b.String()
}

// suggest says which setting was meant by a step that the block does not have.
func suggest(n *node, steps []string, step string) string {
	if n.kind == list {
		return "an entry of a list is named by its number, from 0"
	}
	if n.kind == setting {
		return "it has no settings below it"
	}
	if name := Nearest(step, n.names); name != "" {
		return "did you mean " + join(append(slices.Clone(steps), name)) + "?"
	}
	for _, s := range Settings() {
		if s.Path[strings.LastIndexByte(s.Path, '.')+1:] == step {
			return "did you mean " + s.Path + "?"
		}
	}
	return "known here: " + strings.Join(n.names, ", ")
}

// field finds the field of c that the steps lead to; lists grow as needed.
func field(c *Config, steps []string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for _, step := range steps {
		if v.Kind() == reflect.Slice {
			i, _ := strconv.Atoi(step)
			for v.Len() <= i {
				v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			}
			v = v.Index(i)
			continue
		}
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("key") == step {
				v = v.Field(i)
				break
			}
		}
	}
	return v
}

package config

import (
	"maps"
	"os"
	"slices"
	"strings"
)

// Prefix begins the names of all variables.
const Prefix = "ONWARD_"

// FileVariable names the configuration file where --config does not.
const FileVariable = Prefix + "CONFIG"

// readEnviron reads ONWARD_DATABASE__URL and the like, in the order of their names. A name without "__" is not one of ours
// (Kubernetes sets ONWARD_SERVICE_HOST for a service called onward) unless only its underscores are wrong. An empty
// variable counts as not set.
func readEnviron(environ []string) (entries []entry, faults Faults) {
	values := make(map[string]string)
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		values[name] = value // the last one counts, as in a process
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		path, ours := strings.CutPrefix(name, Prefix)
		if !ours || value == "" || name == FileVariable {
			continue
		}
		if !strings.Contains(path, "__") {
			if meant := misspelt(path); meant != "" {
				faults = append(faults, Fault{Place: name, Detail: "unknown key, did you mean " + meant + "?", Unknown: true})
			}
			continue
		}
		e, fault := variable(name, path, value)
		if fault != nil {
			faults = append(faults, *fault)
			continue
		}
		entries = append(entries, e)
	}
	return entries, append(faults, twice(entries)...)
}

// variable reads one variable, or the file that it names.
func variable(name, path, value string) (entry, *Fault) {
	steps := strings.Split(strings.ToLower(path), "__")
	fault := resolve(steps, name)
	if fault == nil {
		return entry{steps: steps, text: value, place: place{name: name}}, nil
	}
	stem, isFile := strings.CutSuffix(strings.ToLower(path), "_file")
	if !isFile || resolve(strings.Split(stem, "__"), name) != nil {
		return entry{}, fault
	}
	steps = strings.Split(stem, "__")
	if !find(steps).secret {
		return entry{}, &Fault{Place: name, Path: join(steps), Detail: "is no secret: only secrets are read from files"}
	}
	text, err := os.ReadFile(value)
	if err != nil {
		return entry{}, &Fault{Place: name, Path: join(steps), Detail: err.Error()}
	}
	return entry{steps: steps, text: strings.TrimRight(string(text), "\r\n"), place: place{name: name}}, nil
}

// twice finds settings that both a variable and a file make.
func twice(entries []entry) (faults Faults) {
	first := make(map[string]string)
	for _, e := range entries {
		path := join(e.steps)
		if other, seen := first[path]; seen {
			faults = append(faults, e.place.fault(path, "is set by "+other+" as well"))
		}
		first[path] = e.place.name
	}
	return faults
}

func find(steps []string) *node {
	n := tree
	for _, step := range steps {
		if n = n.child(step); n == nil {
			return nil
		}
	}
	return n
}

// misspelt returns the variable whose name differs by underscores alone.
func misspelt(path string) string {
	bare := func(s string) string { return strings.ReplaceAll(s, "_", "") }
	for _, s := range Settings() {
		right := strings.ToUpper(strings.ReplaceAll(strings.ReplaceAll(s.Path, "[]", ".0"), ".", "__"))
		if bare(right) == bare(path) || s.Secret && bare(right)+"FILE" == bare(path) {
			return Prefix + right
		}
	}
	return ""
}

package knownbad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is what the last run of each bad build showed: docs/proof/known-bad.json.
type Report struct {
	Builds []Result `json:"builds"` // by name
}

// Result is one bad build, and how each of its checks found it.
type Result struct {
	Name    string   `json:"name"`
	Promise string   `json:"promise"`
	Says    string   `json:"says"`
	Commit  string   `json:"commit"`
	Day     string   `json:"day"` // UTC
	Caught  []Caught `json:"caught"`
}

// LoadReport reads a report; one that is not there is empty.
func LoadReport(file string) (r Report, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// Take puts a result in the place of the one before.
func (r *Report) Take(result Result) {
	i, known := slices.BinarySearchFunc(r.Builds, result.Name, func(b Result, name string) int { return strings.Compare(b.Name, name) })
	if !known {
		r.Builds = slices.Insert(r.Builds, i, result)
	}
	r.Builds[i] = result
}

// Keep drops the results of what is no bad build any more.
func (r *Report) Keep(all []Build) {
	r.Builds = slices.DeleteFunc(r.Builds, func(result Result) bool {
		return !slices.ContainsFunc(all, func(b Build) bool { return b.Name == result.Name })
	})
}

// Catch runs the checks of a bad build on it; dir is for its files.
func (b *Build) Catch(ctx context.Context, root, dir string) (Result, error) {
	r := Result{Name: b.Name, Promise: b.Promise, Says: b.Says}
	overlay, err := b.Overlay(root, dir)
	if err != nil {
		return r, err
	}
	var faults []error
	for i := range b.Checks {
		c, err := b.Checks[i].Catch(ctx, root, overlay)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", b.Name, err))
			continue
		}
		r.Caught = append(r.Caught, c)
	}
	return r, errors.Join(faults...)
}

// Save writes the report.
func (r *Report) Save(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// Table writes the report for people.
func (r *Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "BAD BUILD\tPROMISE\tCAUGHT BY\tTEST\tRUNS\tSECONDS")
	for _, b := range r.Builds {
		for _, c := range b.Caught {
			runs := "-"
			if c.Runs > 0 {
				runs = fmt.Sprint(c.Runs)
			}
			_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s %s\t%s\t%.1f\n", b.Name, b.Promise, c.By, c.Package, strings.Join(c.Tests, " "), runs, c.Seconds)
		}
	}
	return t.Flush()
}

package knownbad

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Caught is how a check found a bad build.
type Caught struct {
	By      string   `json:"by"`
	Package string   `json:"package"`
	Tests   []string `json:"tests"`          // that failed: those without failed subtests
	Said    string   `json:"said"`           // the first of them
	Seed    *int     `json:"seed,omitempty"` // of a seeded machine: the first that found it
	Runs    int      `json:"runs,omitempty"` // and how many seeds that took
	Seconds float64  `json:"seconds"`
}

// timeout ends a test that a fault has made to hang: that is no finding.
const timeout = "5m"

// Baseline runs all of these checks without any patch: each must pass, and find a test to run.
func Baseline(ctx context.Context, root string, checks []Check) error {
	type run struct{ pkg, env string }
	patterns := map[run][]string{}
	var order []run
	for _, c := range checks {
		r := run{c.Package, strings.Join(c.Env, " ")}
		if patterns[r] == nil {
			order = append(order, r)
		}
		if !slices.Contains(patterns[r], c.Run) {
			patterns[r] = append(patterns[r], c.Run)
		}
	}
	var faults []error
	for _, r := range order {
		slices.Sort(patterns[r]) // the same command for the same checks: go test remembers what passed
		all := Check{Package: r.pkg, Run: strings.Join(patterns[r], "|"), Env: strings.Fields(r.env)}
		o, err := all.run(ctx, root, "")
		switch {
		case err != nil:
		case !o.built, len(o.failed) > 0, o.broke:
			err = fmt.Errorf("%s fails without any patch:\n%s", all.Run, o.text)
		case o.skipped:
			err = errors.New("tests were skipped: start the servers with: dev/services up && eval \"$(dev/services env)\"")
		}
		for _, pattern := range patterns[r] {
			if err == nil && !slices.ContainsFunc(o.passed, func(test string) bool { return selects(pattern, test) }) {
				err = fmt.Errorf("%s has no test %s", r.pkg, pattern)
			}
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", r.pkg, err))
		}
	}
	return errors.Join(faults...)
}

// selects reports whether a pattern of go test -run chooses a test, or the parents of it.
func selects(pattern, test string) bool {
	parts, names := strings.Split(pattern, "/"), strings.Split(test, "/")
	if len(names) < len(parts) {
		return false
	}
	for i, part := range parts {
		if ok, err := regexp.MatchString(part, names[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// Catch runs the check on the bad build. It must fail by a test that says what is wrong: a patch that does not compile, a
// panic and a timeout are errors.
func (c *Check) Catch(ctx context.Context, root, overlay string) (Caught, error) {
	found := Caught{By: c.By, Package: strings.TrimPrefix(c.Package, "./")}
	began := time.Now()
	o, err := c.run(ctx, root, overlay)
	found.Seconds = float64(time.Since(began).Round(100*time.Millisecond)) / float64(time.Second)
	switch {
	case err != nil:
		return found, err
	case !o.built:
		return found, fmt.Errorf("it does not compile:\n%s", o.text)
	case o.broke:
		return found, fmt.Errorf("%s %s hangs or panics instead of failing:\n%s", c.Package, c.Run, o.text)
	case len(o.failed) == 0:
		return found, fmt.Errorf("NOT CAUGHT by %s %s", c.Package, c.Run)
	}
	found.Tests = o.failed
	found.Said = o.said(o.failed[0])
	if found.Said == "" {
		return found, fmt.Errorf("%s fails and says nothing:\n%s", o.failed[0], o.text)
	}
	if seed := seeded.FindStringSubmatch(o.text); seed != nil && (c.By == "world" || c.By == "simulator") {
		n, _ := strconv.Atoi(seed[1]) // digits
		found.Seed, found.Runs = &n, n
		if c.By == "world" { // whose seeds begin with 0
			found.Runs++
		}
	}
	return found, nil
}

var (
	seeded  = regexp.MustCompile(`\bseed[ =](\d+)`)
	message = regexp.MustCompile(`^\s+\w+\.go:\d+: (.*)`)
)

// outcome is what go test said.
type outcome struct {
	built          bool
	broke          bool // a panic or a timeout
	skipped        bool
	passed, failed []string
	outputs        map[string][]string
	text           string // all that the failed tests said, and the builder
}

// said is the first message of a test.
func (o *outcome) said(test string) string {
	for _, line := range o.outputs[test] {
		if m := message.FindStringSubmatch(line); m != nil {
			text := strings.TrimSpace(m[1])
			return text[:min(len(text), 200)]
		}
	}
	return ""
}

// event is a line of go test -json.
type event struct{ Action, Package, ImportPath, Test, Output string }

func (c *Check) run(ctx context.Context, root, overlay string) (*outcome, error) {
	args := []string{"test", "-json", "-vet=off", "-timeout", timeout, "-run", c.Run}
	env := append(os.Environ(), c.Env...)
	if overlay != "" { // in the environment: a test may build programs
		args = append(args, "-count=1")
		env = append(env, strings.TrimSpace("GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	test := exec.CommandContext(ctx, "go", append(args, c.Package)...)
	test.Dir, test.Env = root, env
	var words bytes.Buffer
	test.Stderr = &words
	out, err := test.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("go test: %w", err)
	}
	o := &outcome{built: true, outputs: map[string][]string{}, text: words.String()}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			o.take(e)
		}
	}
	if err := errors.Join(lines.Err(), ctx.Err()); err != nil {
		return nil, err
	}
	o.failed = slices.DeleteFunc(o.failed, func(test string) bool {
		return slices.ContainsFunc(o.failed, func(other string) bool { return strings.HasPrefix(other, test+"/") })
	})
	slices.Sort(o.failed)
	for _, test := range o.failed {
		o.text += strings.Join(o.outputs[test], "")
	}
	if err != nil && o.built && !o.broke && len(o.failed) == 0 {
		return nil, fmt.Errorf("go test %s %s: %w\n%s", c.Run, c.Package, err, o.text)
	}
	return o, nil
}

func (o *outcome) take(e event) {
	switch e.Action {
	case "build-fail":
		o.built = false
	case "build-output":
		o.text += e.Output
	case "output":
		o.outputs[e.Test] = append(o.outputs[e.Test], e.Output)
		if strings.HasPrefix(e.Output, "panic: ") || strings.HasPrefix(e.Output, "fatal error: ") {
			o.broke = true
			o.text += e.Output
		}
	case "skip":
		o.skipped = o.skipped || e.Test != ""
	case "pass":
		if e.Test != "" {
			o.passed = append(o.passed, e.Test)
		}
	case "fail":
		if e.Test != "" {
			o.failed = append(o.failed, e.Test)
		}
	}
}

// Command knownbad makes each bad build of e2e/knownbad and sees to it that its checks find it: make known-bad. It runs in the
// repository's root, and its checks need the servers of dev/services. With names it makes those alone. What it
// found is written to docs/proof/known-bad.json.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onwardhq/onward/e2e/knownbad"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "knownbad:", err)
		os.Exit(1)
	}
}

const report = "docs/proof/known-bad.json"

func run(ctx context.Context, names []string) error {
	all, err := knownbad.Load("e2e/knownbad/builds")
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(b knownbad.Build) bool { return len(names) > 0 && !slices.Contains(names, b.Name) })
	if len(chosen) == 0 {
		return fmt.Errorf("there is no bad build %s", strings.Join(names, ", "))
	}
	var checks []knownbad.Check
	for _, b := range chosen {
		checks = append(checks, b.Checks...)
	}
	fmt.Fprintf(os.Stderr, "%d bad builds; their checks must pass without them\n", len(chosen))
	if err := knownbad.Baseline(ctx, ".", checks); err != nil {
		return err
	}
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("git rev-parse: %w", err)
	}
	var now knownbad.Report
	missed := 0
	for _, b := range chosen {
		result, err := catch(ctx, &b)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fmt.Fprintf(os.Stderr, "%s: caught by %d of %d\n", b.Name, len(result.Caught), len(b.Checks))
		now.Take(result)
		if err != nil {
			missed++
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		result.Commit, result.Day = strings.TrimSpace(string(commit)), time.Now().UTC().Format(time.DateOnly)
		r, err := knownbad.LoadReport(report) // again each time: another run may be at other builds
		if err != nil {
			return err
		}
		r.Keep(all)
		r.Take(result)
		if err := r.Save(report); err != nil {
			return err
		}
	}
	if err := now.Table(os.Stdout); err != nil {
		return err
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d bad builds were not caught by all of their checks", missed, len(chosen))
	}
	return nil
}

func catch(ctx context.Context, b *knownbad.Build) (knownbad.Result, error) {
	dir, err := os.MkdirTemp("", "knownbad-")
	if err != nil {
		return knownbad.Result{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return b.Catch(ctx, ".", dir)
}

//go:build failpoint

// Package failpoint ends or delays the process at chosen lines, for crash tests: in a build with the tag failpoint, as the
// variable ONWARD_FAILPOINTS says. In every other build, and so in every release, it is nothing.
//
// Each module has a copy, because none imports another one's internal packages.
package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// point is what is to happen at a line.
type point struct {
	hits  atomic.Int64
	crash int64         // at this hit; 0: never
	sleep time.Duration // at each
}

// points is what ONWARD_FAILPOINTS asks for: name=crash, name=crash@3 (at the third time), name=sleep:100ms; with ";" between.
var points = sync.OnceValue(func() map[string]*point {
	all := map[string]*point{}
	for _, text := range strings.Split(os.Getenv("ONWARD_FAILPOINTS"), ";") {
		name, act, found := strings.Cut(strings.TrimSpace(text), "=")
		if name == "" {
			continue
		}
		p := &point{}
		word, rest, _ := strings.Cut(act, ":")
		kind, times, counted := strings.Cut(word, "@")
		var err error
		switch {
		case found && kind == "crash" && !counted:
			p.crash = 1
		case found && kind == "crash":
			p.crash, err = strconv.ParseInt(times, 10, 64)
		case found && kind == "sleep":
			p.sleep, err = time.ParseDuration(rest)
		default:
			err = fmt.Errorf("want crash, crash@N or sleep:DURATION")
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "ONWARD_FAILPOINTS: %q: %v\n", text, err)
			os.Exit(2)
		}
		all[name] = p
	}
	return all
})

// Hit marks a line by a name: the package, what it is at, and where in it. Each is crash-tested in e2e/failpoints.
func Hit(name string) {
	p := points()[name]
	if p == nil {
		return
	}
	hits := p.hits.Add(1)
	if p.sleep > 0 {
		<-time.After(p.sleep)
	}
	if hits != p.crash {
		return
	}
	fmt.Fprintf(os.Stderr, "failpoint %s: crash at hit %d\n", name, hits)
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill() // nothing is cleaned up, flushed or told to anybody
	}
	select {}
}

// Package leaktest fails the tests of a package that leave goroutines behind. It is for the tests of stores, of publishers, and
// of services that run a relay:
//
//	func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }
package leaktest

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// grace is how long goroutines have to end after the last test.
const grace = 10 * time.Second

// always are goroutines that no test can end: the runtime's own, and the one that runs the tests.
var always = []string{"os/signal.loop", "runtime.ensureSigM", "runtime/trace.", "runtime/pprof.", "testing.(*M).Run", "testing.(*F).Fuzz"}

// Main runs the tests and returns the process's exit code: that of the tests, or 1 where they passed and 10 seconds later there
// are goroutines that they left, which it shows. A goroutine whose stack contains one of these texts, for example the name of a
// function, may stay.
func Main(m interface{ Run() int }, may ...string) (code int) {
	if code = m.Run(); code == 0 {
		code = check(os.Stderr, grace, append(may, always...))
	}
	return code
}

func check(out io.Writer, within time.Duration, may []string) (code int) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); ; <-tick.C {
		left := remaining(may)
		if len(left) == 0 {
			return 0
		}
		if time.Now().After(deadline) {
			_, _ = fmt.Fprintf(out, "leaktest: %d goroutines were left:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
			return 1
		}
	}
}

// remaining returns the stacks of all goroutines but the caller's and those that may stay.
func remaining(may []string) []string {
	all := make([]byte, 1<<20)
	for n := runtime.Stack(all, true); ; n = runtime.Stack(all, true) {
		if n < len(all) {
			all = all[:n]
			break
		}
		all = make([]byte, 2*len(all))
	}
	others := strings.Split(strings.TrimSpace(string(all)), "\n\n")[1:]
	return slices.DeleteFunc(others, func(stack string) bool {
		return slices.ContainsFunc(may, func(text string) bool { return strings.Contains(stack, text) })
	})
}

//go:build !failpoint

// Package failpoint ends or delays the process at chosen lines, for crash tests: in a build with the tag failpoint, as the
// variable ONWARD_FAILPOINTS says. In every other build, and so in every release, it is nothing.
//
// Each module has a copy, because none imports another one's internal packages.
package failpoint

// Hit marks a line by a name: the package, what it is at, and where in it. Each is crash-tested in e2e/failpoints.
func Hit(string) {}

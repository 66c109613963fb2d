//go:build !race

package failpoints

var buildFlags []string

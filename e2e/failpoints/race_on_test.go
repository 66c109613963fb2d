//go:build race

package failpoints

// The program is built as its tests are: then all that it is made of is compiled already.
var buildFlags = []string{"-race"}

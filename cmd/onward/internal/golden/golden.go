// Package golden compares what a test got with a file of its package's testdata.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Compare fails the test where got is not what testdata/NAME.golden holds. `go test -update` writes the file anew.
func Compare(t testing.TB, name, got string) {
	t.Helper()
	File(t, filepath.Join("testdata", name+".golden"), got)
}

// File is Compare of a file anywhere: a page of the documentation that is written by a test.
func File(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file) //nolint:gosec // a file of the test's own
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; `go test -update` writes it anew.\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

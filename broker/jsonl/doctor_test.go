package jsonl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onwardhq/onward/doctor"
)

// A line is worth what was done with it when it is acknowledged: on the disk, with the system, or in somebody's pipe.
func TestTheVerdictOfAFileGoesByItsSync(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a.jsonl")
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	for _, c := range []struct {
		config Config
		want   doctor.Severity
		worth  string
	}{
		{Config{Path: file, Sync: true}, doctor.OK, "survives a crash and a power loss"},
		{Config{Path: file}, doctor.Warning, "not a crash of the machine"},
		{Config{Output: out}, doctor.Note, "whoever reads the stream"},
	} {
		p, err := NewPublisher(c.config)
		if err != nil {
			t.Fatal(err)
		}
		d, err := p.Examine(t.Context(), doctor.Question{})
		if err != nil || d.Verdict() != c.want || !strings.Contains(d.Worth, c.worth) {
			t.Errorf("%+v: %v, %q, %v", c.config, d.Verdict(), d.Worth, err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The page that is kept is what the figures beside it give: nobody has changed a figure by hand.
func TestThePageIsMadeOfTheFigures(t *testing.T) {
	t.Parallel()
	page, err := Page("../../../docs/proof")
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile("../../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(kept) != string(page) {
		t.Error("docs/proof.md is not what docs/proof gives: go run ./e2e/cmd/proof")
	}
}

func TestAPageHasWhatTheReportsSay(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, text := range map[string]string{
		"page.tmpl": `{{ $k := figures "kills" }}{{ $k.Get "verdict" "sent" }} {{ $k.Get "verdict" "lost" }} {{ $k.Get "nothing" "here" }} {{ $k.Pairs "in_flight" }} {{ $k.Words "names" }} {{ $k.Failures }}` +
			`{{ with figures "none" }}never{{ end }}{{ range reports "chaos" }} [{{ .Get "lost" }}]{{ end }}`,
		"kills.json":   `{"verdict": {"sent": 1234567, "lost": 0}, "in_flight": {"b": 2, "a": 1.5, "c": 0}, "names": ["x", "y"], "failed": [{}]}`,
		"chaos-b.json": `{"lost": 2}`,
		"chaos-a.json": `{"lost": 1}`,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	page, err := Page(folder)
	if want := "1,234,567 0 - a 1.5, b 2 x, y 1 [1] [2]"; err != nil || string(page) != want {
		t.Errorf("%q, %v, want %q", page, err, want)
	}
	if err := os.WriteFile(filepath.Join(folder, "kills.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Page(folder); err == nil || !strings.Contains(err.Error(), "kills.json") {
		t.Errorf("a report that is cut off: %v", err)
	}
}

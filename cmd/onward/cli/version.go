package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// versionView is what `version` says.
type versionView struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// version reads what the Go toolchain wrote into the binary.
func version() versionView {
	v := versionView{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if b.Main.Version != "" && b.Main.Version != "(devel)" {
		v.Version = b.Main.Version
	}
	for _, s := range b.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the program's version",
		Example: `  onward version -o json`,
		Args:    takes(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			v := version()
			return a.emit(v, []any{v}, func() *table {
				t := newTable("VERSION", "REVISION", "GO", "PLATFORM")
				revision := short(v.Revision, 13)
				if revision == "" {
					revision = "-"
				}
				t.add(text(v.Version), text(revision), text(v.Go), text(v.Platform))
				return t
			})
		},
	}
}

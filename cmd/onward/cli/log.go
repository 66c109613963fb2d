package cli

import (
	"io"
	"log/slog"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
)

// newLogger makes the program's log: text for a person at a terminal, JSON for everything else, unless the setting
// decides. With quiet only errors are said.
func newLogger(w io.Writer, terminal, quiet bool, c config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked with the configuration
	if quiet {
		level = slog.LevelError
	}
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" || c.Format == "auto" && !terminal {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

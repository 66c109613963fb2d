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
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	if c.Format == "json" || c.Format == "auto" && !terminal {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// readable writes times in UTC, and durations as people do: in JSON they would be nanoseconds.
func readable(_ []string, at slog.Attr) slog.Attr {
	if at.Value.Kind() == slog.KindTime {
		at.Value = slog.TimeValue(at.Value.Time().UTC())
	}
	if at.Value.Kind() == slog.KindDuration {
		at.Value = slog.StringValue(at.Value.Duration().String())
	}
	return at
}

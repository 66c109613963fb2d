package cli

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func newMessagesShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one message: its fields, headers, payload, and its state in each sink",
		Long: `Shows one message whole. A payload that is no text is shown as a hex dump, in JSON as
payload_base64. Of what was published it says the minute, as long as retention has kept it; where
relays changed at the time it says between which times. Of a message that was parked it is the
time at which it left the log.`,
		Example: `  onward messages show 0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e
  onward messages show 0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e -o json | jq -r .payload`,
		Args: takes(1, 1, "the id of a message"),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := outbox.ParseID(args[0])
			if err != nil {
				return err
			}
			return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
				m, err := admin.Message(ctx, id)
				if err != nil {
					return err
				}
				view := viewMessage(&m, true)
				if a.output != outTable {
					return a.emit(view, []any{view}, nil)
				}
				return a.writeMessage(&m)
			})
		},
	}
}

// sheet writes one thing as names and values below each other.
type sheet struct {
	w     io.Writer
	paint painter
	err   error
}

func (s *sheet) line(name, value string) {
	if value != "" {
		s.printf("%s %s\n", s.paint(fmt.Sprintf("%-15s", name), faint), visible(value))
	}
}

func (s *sheet) printf(format string, args ...any) {
	if s.err == nil {
		_, s.err = fmt.Fprintf(s.w, format, args...)
	}
}

// record writes a message's own fields.
func (s *sheet) record(r *outbox.Record) {
	s.line("id", r.ID.String())
	s.line("topic", r.Topic)
	s.line("key", r.Key)
	s.line("type", r.Type)
	s.line("written", clock(r.CreatedAt)+" UTC")
	if !r.AvailableAt.IsZero() {
		s.line("available", clock(r.AvailableAt)+" UTC")
	}
	place := fmt.Sprintf("partition %d, seq %d", r.Partition, r.Seq)
	if r.KeySeq != 0 {
		place += ", number " + strconv.FormatInt(r.KeySeq, 10) + " of its key"
	}
	s.line("place", place)
	s.line("scope", r.Scope)
	s.line("correlation id", r.CorrelationID)
	s.line("causation id", r.CausationID)
	s.line("aggregate", strings.TrimSpace(r.AggregateType+" "+r.AggregateID))
	s.line("event id", r.EventID)
	for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
		s.line("header", name+": "+r.Headers[name])
	}
}

// payload writes text as it is, and anything else as a hex dump of its beginning.
func (s *sheet) payload(r *outbox.Record) {
	s.line("payload", plural(len(r.Payload), "byte")+", "+r.ContentType)
	switch {
	case len(r.Payload) == 0:
	case printable(r.Payload):
		s.printf("\n%s\n", strings.TrimRight(string(r.Payload), "\n"))
	default:
		const most = 512
		s.printf("\n%s", hex.Dump(r.Payload[:min(len(r.Payload), most)]))
		if len(r.Payload) > most {
			s.printf("... %s more bytes: -o json has them all\n", count(int64(len(r.Payload)-most)))
		}
	}
}

// printable reports text that leaves a terminal as it is: lines and tabs are its only controls.
func printable(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	text := strings.NewReplacer("\n", "", "\t", "", "\r", "").Replace(string(b))
	return visible(text) == text
}

func (a *app) writeMessage(m *store.MessageInfo) error {
	s := &sheet{w: a.out(), paint: a.paint(a.env.OutIsTerminal)}
	s.record(&m.Record)
	s.line("transaction", strconv.FormatUint(m.Tx, 10))
	for _, state := range m.States {
		s.line("in "+state.Sink, stateText(&state))
		s.line("", state.LastError)
		if state.Pause != nil {
			s.line("", pauseText(state.Pause))
		}
	}
	if len(m.States) == 0 {
		s.line("state", "pending: no sink takes it")
	}
	s.payload(&m.Record)
	for _, state := range m.States {
		switch {
		case state.State == store.StateDead:
			a.say("`onward dead show %s` has the cause and each attempt", m.ID)
		case state.Pause != nil:
			a.say("`onward resume %s` ends the pause", pauseWords(state.Pause))
		case state.Reason == store.ReasonBehind:
			a.say("it waits for an earlier message of its key: `onward keys show %s` says what blocks it", shellWord(m.Key))
		}
	}
	return s.err
}

// shellWord writes a text so that a shell takes it as one word.
func shellWord(s string) string {
	if visible(s) == s && !strings.ContainsAny(s, " \t\n'\"\\$`!&|;<>()*?[]{}#~") {
		return s
	}
	return "'" + strings.ReplaceAll(visible(s), "'", `'\''`) + "'"
}

// stateText writes "parked (retry), 3 attempts, due 2026-01-31 10:00:00 UTC, onward/rejected".
func stateText(s *store.SinkState) string {
	text := string(s.State)
	if s.Reason != "" {
		text += " (" + string(s.Reason) + ")"
	}
	if s.Attempts > 0 {
		text += ", " + plural(s.Attempts, "failed attempt")
	}
	if s.PublishedBy != nil && s.PublishedAfter != nil {
		text += " " + moment(*s.PublishedAfter, *s.PublishedBy)
	}
	if s.DueAt != nil {
		text += ", due " + clock(*s.DueAt) + " UTC"
	}
	if s.LastCode != "" {
		text += ", " + string(s.LastCode)
	}
	return text
}

// moment writes "2026-01-31 14:03 UTC" where both times lie in that minute, and otherwise both.
func moment(after, by time.Time) string {
	if after.Truncate(time.Minute).Equal(by.Truncate(time.Minute)) {
		return by.UTC().Format("2006-01-02 15:04") + " UTC"
	}
	return "between " + clock(after) + " and " + clock(by) + " UTC"
}

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func newKeys(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "keys",
		Short: "List keys that wait, and show what blocks one",
		Example: `  onward keys list --blocked
  onward keys show order-42`,
	}, newKeysList(a), newKeysShow(a))
}

// keysOf is what knows the keys of this outbox.
func keysOf(admin store.Admin) (store.Keys, error) {
	if k, ok := admin.(store.Keys); ok {
		return k, nil
	}
	return nil, &outbox.Error{Code: store.ErrDatabaseUnsupported.Code, Op: "keys", Detail: "this database does not say what blocks keys"}
}

func newKeysList(a *app) *cobra.Command {
	var f store.KeyFilter
	c := &cobra.Command{
		Use:   "list",
		Short: "List keys with parked messages, or with a dead letter that blocks them",
		Long: `Lists keys whose messages wait: by sink and partition, in no order of time. WAITING counts parked
messages, up to 1,000+ for each key; scheduled ones, which wait for their time alone and block nobody,
are counted apart. --blocked leaves out keys that have nothing but those.`,
		Example: `  onward keys list --blocked
  onward keys list --blocked --sink orders -o json | jq '.keys[] | select(.dead) | .key'`,
		Args: takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			if f.Limit <= 0 {
				return &usageError{err: fmt.Errorf("--limit %d: is not at least 1", f.Limit), command: c.CommandPath()}
			}
			return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
				keys, err := keysOf(admin)
				if err != nil {
					return err
				}
				list, err := keys.Keys(ctx, f)
				if err != nil {
					return err
				}
				list.Keys = append([]store.KeyInfo{}, list.Keys...)
				if err := a.emit(list, anys(list.Keys), func() *table { return keysTable(list.Keys) }); err != nil {
					return err
				}
				a.sayMore(len(list.Keys), "key", shellWord(list.Next), false)
				return nil
			})
		},
	}
	c.Flags().StringVar(&f.Sink, "sink", "", "of this `sink`")
	c.Flags().BoolVar(&f.Blocked, "blocked", false, "only keys that wait for more than the time of scheduled messages")
	c.Flags().IntVar(&f.Limit, "limit", 100, "at most so `many`, up to 10000")
	c.Flags().StringVar(&f.After, "after", "", "go on where a list ended; it says `where`")
	return c
}

func keysTable(all []store.KeyInfo) *table {
	t := newTable("SINK", "KEY", "WAITING", "SCHEDULED", "OLDEST (UTC)", "BLOCKED BY")
	for i := range all {
		k := &all[i]
		oldest := "-"
		if k.Oldest != nil {
			oldest = clock(*k.Oldest)
		}
		by := text(blockedBy(k))
		if k.Dead != nil {
			by.style = red
		}
		t.add(text(k.Sink), text(short(k.Key, 40)), number(atLeast(k.Waiting, k.WaitingAtLeast)), number(count(k.Scheduled)), text(oldest), by)
	}
	return t
}

// blockedBy says in a few words what a key waits for.
func blockedBy(k *store.KeyInfo) string {
	switch {
	case k.Dead != nil:
		return "dead letter " + k.Dead.ID.String() + ", " + string(k.Dead.Code)
	case k.Pause != nil:
		return pauseText(k.Pause)
	case k.Head != nil:
		return headText(k.Head)
	case k.Scheduled > 0:
		return "nothing: its time is ahead"
	}
	return "nothing"
}

// headText writes "retry after 3 failed attempts, due 2026-01-31 10:00:00 UTC, onward/rejected".
func headText(h *store.KeyBlock) string {
	words := string(h.Reason)
	if h.Attempts > 0 {
		words += " after " + plural(h.Attempts, "failed attempt")
	}
	if h.DueAt != nil {
		words += ", due " + clock(*h.DueAt) + " UTC"
	}
	if h.Code != "" {
		words += ", " + string(h.Code)
	}
	return words
}

func newKeysShow(a *app) *cobra.Command {
	var sink string
	c := &cobra.Command{
		Use:   "show KEY",
		Short: "Show how a key stands: what blocks it, and how many wait",
		Long: `Shows how a key stands in each sink: how many of its messages are parked, since when, and what the
first of them waits for: a dead letter that blocks the key, its next try, or a pause.`,
		Example: `  onward keys show order-42
  onward keys show order-42 --sink orders -o json | jq '.keys[0].head.due_at'`,
		Args: takes(1, 1, "a key"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
				keys, err := keysOf(admin)
				if err != nil {
					return err
				}
				all, err := keys.Key(ctx, sink, args[0])
				if err != nil {
					return err
				}
				if a.output != outTable {
					return a.emit(store.KeyList{Keys: all}, anys(all), nil)
				}
				return a.writeKeys(all)
			})
		},
	}
	c.Flags().StringVar(&sink, "sink", "", "of this `sink`")
	return c
}

func (a *app) writeKeys(all []store.KeyInfo) error {
	s := &sheet{w: a.out(), paint: a.paint(a.env.OutIsTerminal)}
	for i := range all {
		k := &all[i]
		if i > 0 {
			s.printf("\n")
		}
		s.line("key", k.Key)
		s.line("sink", k.Sink)
		s.line("partition", fmt.Sprint(k.Partition))
		s.line("waiting", atLeast(k.Waiting, k.WaitingAtLeast))
		if k.Scheduled > 0 {
			s.line("scheduled", count(k.Scheduled)+", which wait for their time and block nobody")
		}
		if k.Oldest != nil {
			s.line("oldest", clock(*k.Oldest)+" UTC")
		}
		if d := k.Dead; d != nil {
			s.line("blocked by", fmt.Sprintf("dead letter %s of topic %s, %s, %s", d.ID, d.Topic, plural(d.Attempts, "failed attempt"), d.Code))
			s.line("", d.Error)
		}
		if k.DeadCount > 1 {
			s.line("", fmt.Sprintf("and %s more", plural(int(k.DeadCount)-1, "dead letter")))
		}
		if h := k.Head; h != nil {
			s.line("first", fmt.Sprintf("%s of topic %s, %s", h.ID, h.Topic, headText(h)))
			s.line("", h.Error)
		}
		if k.Pause != nil {
			s.line("pause", pauseText(k.Pause))
		}
		if !k.Blocked() {
			s.line("blocked by", "nothing")
		}
	}
	for i := range all {
		switch k := &all[i]; {
		case k.Dead != nil:
			a.say("`onward dead show %s` has the cause; requeue or discard it, and the key goes on", k.Dead.ID)
		case k.Pause != nil:
			a.say("`onward resume %s` ends the pause", pauseWords(k.Pause))
		}
	}
	return s.err
}

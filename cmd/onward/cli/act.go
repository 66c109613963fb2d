package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// act is something that a person does to dead letters: which ones, how, and what is said of it.
type act struct {
	filterFlags
	verb, done string // "requeue", "requeued"
	dryRun     bool
	yes        bool
	reason     string
	rate       int
	// parkedToo: an id may name a parked message as well.
	parkedToo bool
	do        func(ctx context.Context, admin store.Admin, a store.Act) error
}

// target is one message in one sink.
type target struct {
	sink string
	id   outbox.ID
}

// result is what became of one target; the JSON of an act.
type result struct {
	Sink   string      `json:"sink"`
	ID     string      `json:"id"`
	Result string      `json:"result"` // "requeued", "discarded", "would be ..." with --dry-run, "refused", "failed"
	Code   outbox.Code `json:"code,omitempty"`
	Error  string      `json:"error,omitempty"`
	Hint   string      `json:"hint,omitempty"`
	err    error
}

const defaultActLimit = 1000

func (t *act) register(c *cobra.Command) {
	flags := c.Flags()
	t.filterFlags.register(c, deadFilters, "that died")
	flags.IntVar(&t.limit, "limit", defaultActLimit, "at most so `many` at once, the oldest first; up to 10000")
	flags.IntVar(&t.rate, "rate", 0, "so `many` a second; 0: as fast as it goes")
	flags.BoolVar(&t.dryRun, "dry-run", false, "say what would be done, and change nothing")
	flags.BoolVarP(&t.yes, "yes", "y", false, "do not ask")
}

// run selects, asks, acts, and reports.
func (t *act) run(c *cobra.Command, a *app, args []string) error {
	ids, err := parseIDs(args)
	if err != nil {
		return err
	}
	filter, err := t.filter(c, a.env.Now())
	if err != nil {
		return err
	}
	if t.rate < 0 {
		return &usageError{err: fmt.Errorf("--rate %d: is not at least 0", t.rate), command: c.CommandPath()}
	}
	if len(ids) == 0 && !filtered(c) {
		return &usageError{err: errors.New("name messages by id, or select them with a filter, for example --sink orders"), command: c.CommandPath()}
	}
	return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
		targets, more, err := t.selectTargets(ctx, admin, ids, filter)
		if err != nil {
			return err
		}
		if more {
			a.say("more than %s match: taking the oldest; run it again for the rest", count(int64(t.limit)))
		}
		if err := t.confirm(a, targets); err != nil {
			return err
		}
		return t.report(a, t.doAll(ctx, admin, targets))
	})
}

// filtered reports whether a filter was given.
func filtered(c *cobra.Command) bool {
	return slices.ContainsFunc(deadFilters, func(name string) bool { return c.Flags().Changed(name) })
}

func (t *act) selectTargets(ctx context.Context, admin store.Admin, ids []outbox.ID, f store.Filter) (targets []target, more bool, err error) {
	if len(ids) == 0 {
		return t.selectByFilter(ctx, admin, f)
	}
	for _, id := range ids {
		f.ID = id
		found, err := t.selectByID(ctx, admin, f)
		if err != nil {
			return nil, false, err
		}
		targets = append(targets, found...)
	}
	return targets, false, nil
}

// selectByFilter pages through all that match and keeps the oldest: a key's messages go in their order then.
func (t *act) selectByFilter(ctx context.Context, admin store.Admin, f store.Filter) (targets []target, more bool, err error) {
	f.Limit = 1000
	for {
		list, err := admin.Dead(ctx, f)
		if err != nil {
			return nil, false, err
		}
		for i := range list.Dead {
			targets = append(targets, target{list.Dead[i].Sink, list.Dead[i].ID})
		}
		if cut := len(targets) - t.limit; cut > 0 {
			targets, more = slices.Delete(targets, 0, cut), true
		}
		if list.Next == "" {
			slices.Reverse(targets)
			return targets, more, nil
		}
		f.After = list.Next
	}
}

// selectByID finds one message, in each sink where it can be acted upon.
func (t *act) selectByID(ctx context.Context, admin store.Admin, f store.Filter) (targets []target, err error) {
	list, err := admin.Dead(ctx, f)
	if err != nil {
		return nil, err
	}
	for i := range list.Dead {
		targets = append(targets, target{list.Dead[i].Sink, f.ID})
	}
	if t.parkedToo {
		m, err := admin.Message(ctx, f.ID)
		if err != nil {
			return nil, err
		}
		for _, s := range m.States {
			if s.State == store.StateParked && (f.Sink == "" || f.Sink == s.Sink) {
				targets = append(targets, target{s.Sink, f.ID})
			}
		}
	}
	if len(targets) == 0 {
		return nil, notDead(ctx, admin, f.ID, t.verb+" message "+f.ID.String(), store.ErrStateConflict.Code)
	}
	return targets, nil
}

// confirm asks before more than one message is touched; where nobody can answer it refuses.
func (t *act) confirm(a *app, targets []target) error {
	if len(targets) <= 1 || t.yes || t.dryRun {
		return nil
	}
	what := fmt.Sprintf("%s %s", t.verb, plural(len(targets), "message"))
	if !a.env.AsksOnIn {
		return &outbox.Error{
			Code: errConfirmationRequired.Code, Op: what, Detail: "more than one message, and nobody is here to confirm",
			Hint: "look at them with --dry-run, then add --yes",
		}
	}
	a.print("%s? [y/N] ", strings.ToUpper(what[:1])+what[1:])
	answer, _ := bufio.NewReader(a.env.In).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return &outbox.Error{Code: errConfirmationRequired.Code, Op: what, Detail: "not confirmed: nothing was done"}
}

// doAll acts on each target by itself: what one refuses does not stop the others. It stops when ctx ends or the database
// cannot be reached.
func (t *act) doAll(ctx context.Context, admin store.Admin, targets []target) []result {
	var tick <-chan time.Time
	if t.rate > 0 {
		ticker := time.NewTicker(time.Second / time.Duration(t.rate))
		defer ticker.Stop()
		tick = ticker.C
	}
	results := make([]result, 0, len(targets))
	for i, target := range targets {
		if tick != nil && i > 0 {
			select {
			case <-tick:
			case <-ctx.Done():
			}
		}
		err := t.do(ctx, admin, store.Act{Sink: target.sink, ID: target.id, Actor: actor(), Reason: t.reason, DryRun: t.dryRun})
		results = append(results, t.result(target, err))
		if err != nil && (ctx.Err() != nil || unreachable(err)) {
			break
		}
	}
	return results
}

func (t *act) result(of target, err error) result {
	r := result{Sink: of.sink, ID: of.id.String(), err: err}
	switch {
	case err == nil && t.dryRun:
		r.Result = "would be " + t.done
	case err == nil:
		r.Result = t.done
	default:
		r.Result = "failed"
		if code := exitCode(err); code == exitRefused || code == exitNotFound || code == exitUsage {
			r.Result = "refused"
		}
		r.Code, r.Error, r.Hint = outbox.CodeOf(err), why(err), outbox.Hint(err)
	}
	return r
}

// why is the error without what was being done, which the command line says.
func why(err error) string {
	if e := (*outbox.Error)(nil); errors.As(err, &e) && e.Err == nil {
		return e.Detail
	}
	return err.Error()
}

// report writes the results. A single failure is the command's error; of many, each was said, and the worst decides the
// exit code.
func (t *act) report(a *app, results []result) error {
	if len(results) == 1 && results[0].err != nil {
		return results[0].err
	}
	document := struct {
		Results []result `json:"results"`
	}{results}
	err := a.emit(document, anys(results), func() *table {
		t := newTable("SINK", "ID", "RESULT", "WHY")
		for _, r := range results {
			became := text(r.Result)
			if r.err != nil {
				became.style = red
			}
			reason := r.Error
			if r.Code != "" {
				reason += " (" + string(r.Code) + ")"
			}
			t.add(text(r.Sink), text(r.ID), became, text(reason))
		}
		return t
	})
	if err != nil {
		return err
	}
	return t.conclude(a, results)
}

func (t *act) conclude(a *app, results []result) error {
	done, worst := 0, error(nil)
	for _, r := range results {
		if r.err == nil {
			done++
		} else if worst == nil || exitCode(r.err) > exitCode(worst) {
			worst = r.err
		}
	}
	said := t.done
	if t.dryRun {
		said = "would be " + t.done
	}
	switch not := len(results) - done; {
	case len(results) == 0:
		a.say("no dead letter matches")
	case not == 0:
		a.say("%s %s", plural(done, "message"), said)
	default:
		a.say("%s %s, %d not", plural(done, "message"), said, not)
	}
	if worst == nil {
		return nil
	}
	if hint := outbox.Hint(worst); hint != "" {
		a.say("hint: %s", hint)
	}
	return fmt.Errorf("%w: %w", errSaid, worst)
}

// actor is who the audit names: the user of this machine. Empty leaves it to the database's user.
func actor() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}

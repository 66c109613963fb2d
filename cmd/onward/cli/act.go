package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strings"
	"sync/atomic"
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

// result is what became of one target; the JSON of an act.
type result struct {
	Sink   string      `json:"sink"`
	ID     string      `json:"id"`
	Result string      `json:"result"` // "requeued", "discarded", "would be ..." with --dry-run, "refused", "failed"
	Code   outbox.Code `json:"code,omitempty"`
	Error  string      `json:"error,omitempty"`
	Hint   string      `json:"hint,omitempty"`
	err    error
	target target
}

const (
	defaultActLimit = 1000
	mostAtOnce      = 10_000
)

func (t *act) register(c *cobra.Command) {
	flags := c.Flags()
	t.filterFlags.register(c, actFilters, "that died")
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
	if err := t.check(c, ids); err != nil {
		return err
	}
	return a.withRepair(c.Context(), func(ctx context.Context, admin store.Admin) error {
		targets, more, err := t.selectTargets(ctx, admin, ids, filter)
		if err != nil {
			return err
		}
		if more {
			a.say("more than %s match: taking the oldest; run it again for the rest", count(int64(t.limit)))
		}
		if err := t.confirm(ctx, a, targets); err != nil {
			return err
		}
		results := t.doAll(ctx, a, admin, targets)
		return t.report(a, results, len(targets)-len(results))
	})
}

// check refuses what the flags and ids cannot mean together.
func (t *act) check(c *cobra.Command, ids []outbox.ID) error {
	given := givenFilters(c)
	bad := func(format string, args ...any) error {
		return &usageError{err: fmt.Errorf(format, args...), command: c.CommandPath()}
	}
	switch {
	case t.rate < 0:
		return bad("--rate %d: is not at least 0", t.rate)
	case t.limit > mostAtOnce:
		return bad("--limit %d: is more than %d; run it again for the rest", t.limit, mostAtOnce)
	case len(ids) == 0 && len(given) == 0:
		return bad("name messages by id, or select them with a filter, for example --sink orders")
	case len(ids) > 0 && slices.ContainsFunc(given, func(name string) bool { return name != "sink" }):
		return bad("ids name the messages already: of the filters only --sink goes with them, not --%s", strings.Join(given, ", --"))
	}
	return nil
}

// givenFilters are the filters on the command line.
func givenFilters(c *cobra.Command) (given []string) {
	for _, name := range actFilters {
		if c.Flags().Changed(name) {
			given = append(given, name)
		}
	}
	return given
}

// confirm asks before more than one message is touched; where nobody can answer it refuses.
func (t *act) confirm(ctx context.Context, a *app, targets []target) error {
	n := len(targets)
	for _, one := range targets {
		if one.refused != nil {
			n--
		}
	}
	if n <= 1 || t.yes || t.dryRun {
		return nil
	}
	return a.confirm(ctx, fmt.Sprintf("%s %s", t.verb, plural(n, "message")), "more than one message")
}

// confirm asks whether something is to be done that is too much to be done by mistake.
func (a *app) confirm(ctx context.Context, what, why string) error {
	if !a.env.AsksOnIn {
		return &outbox.Error{
			Code: errConfirmationRequired.Code, Op: what, Detail: why + ", and nobody is here to confirm",
			Hint: "look first with --dry-run, then add --yes",
		}
	}
	switch a.ask(ctx, strings.ToUpper(what[:1])+what[1:]+"? [y/N] ") {
	case "y", "yes":
		return nil
	}
	return &outbox.Error{Code: errConfirmationRequired.Code, Op: what, Detail: "not confirmed: nothing was done"}
}

// ask returns the answer in lower case; an empty one when ctx ends first, as with Ctrl-C.
func (a *app) ask(ctx context.Context, question string) string {
	a.progress.doing(nil)
	defer a.progress.doing(stillWorking)
	a.print("%s", question)
	answers := make(chan string, 1)
	go func() { // where nobody answers, it ends with the process
		line, err := bufio.NewReader(a.env.In).ReadString('\n')
		if err != nil {
			a.print("\n") // nobody pressed return
		}
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answers:
		return answer
	case <-ctx.Done():
		a.print("\n")
		return ""
	}
}

// doAll acts on each target by itself: what one refuses does not stop the others. When ctx ends, or the database cannot
// be reached, it leaves the rest undone; the act that was begun then is finished, so that its result is known.
func (t *act) doAll(ctx context.Context, a *app, admin store.Admin, targets []target) []result {
	var tick <-chan time.Time
	if t.rate > 0 {
		ticker := time.NewTicker(max(time.Second/time.Duration(t.rate), 1))
		defer ticker.Stop()
		tick = ticker.C
	}
	var n atomic.Int64
	a.progress.doing(doneOf(&n, len(targets), t.became()))
	defer a.progress.doing(stillWorking)
	results := make([]result, 0, len(targets))
	for i, target := range targets {
		if tick != nil && i > 0 {
			select {
			case <-tick:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			break
		}
		err := target.refused
		if err == nil {
			err = t.do(context.WithoutCancel(ctx), admin, store.Act{Sink: target.sink, ID: target.id, Actor: actor(), Reason: t.reason, DryRun: t.dryRun})
		}
		results = append(results, t.result(target, err))
		if unreachable(err) {
			break
		}
		n.Add(1)
	}
	return results
}

// became is what is said of messages that the act was done to.
func (t *act) became() string {
	if t.dryRun {
		return "would be " + t.done
	}
	return t.done
}

func (t *act) result(of target, err error) result {
	r := result{Sink: of.sink, ID: of.id.String(), err: err, target: of}
	switch {
	case err == nil:
		r.Result = t.became()
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
// Those that were left undone are counted.
func (t *act) report(a *app, results []result, undone int) error {
	if len(results) == 1 && undone == 0 && results[0].err != nil {
		return results[0].err
	}
	document := struct {
		Results []result `json:"results"`
	}{results}
	err := a.emit(document, anys(results), func() *table {
		t := newTable("SINK", "ID", "TOPIC", "KEY", "RESULT", "WHY")
		for _, r := range results {
			became := text(r.Result)
			if r.err != nil {
				became.style = red
			}
			reason := r.Error
			if r.Code != "" {
				reason += " (" + string(r.Code) + ")"
			}
			t.add(text(r.Sink), text(r.ID), text(r.target.topic), text(short(r.target.key, 40)), became, text(reason))
		}
		return t
	})
	if err != nil {
		return err
	}
	return t.conclude(a, results, undone)
}

func (t *act) conclude(a *app, results []result, undone int) error {
	done, worst := 0, error(nil)
	for _, r := range results {
		if r.err == nil {
			done++
		} else if worst == nil || exitCode(r.err) > exitCode(worst) {
			worst = r.err
		}
	}
	words := fmt.Sprintf("%s %s", plural(done, "message"), t.became())
	if not := len(results) - done; not > 0 {
		words += fmt.Sprintf(", %s not", count(int64(not)))
	}
	if undone > 0 {
		words += fmt.Sprintf("; stopped before %s more", count(int64(undone)))
	}
	if len(results)+undone == 0 {
		words = "no dead letter matches"
	}
	a.say("%s", words)
	if worst != nil {
		if hint := outbox.Hint(worst); hint != "" {
			a.say("hint: %s", hint)
		}
		return fmt.Errorf("%w: %w", errSaid, worst)
	}
	if undone > 0 {
		return errSaid
	}
	return nil
}

// actor is who the audit names: the user of this machine. Empty leaves it to the database's user.
func actor() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}

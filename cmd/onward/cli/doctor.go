package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
)

// doctorFlags are those of `onward doctor`.
type doctorFlags struct {
	json, strict bool
	topics       []string
	timeout      time.Duration
}

func newDoctor(a *app) *cobra.Command {
	var f doctorFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what a commit and an acknowledgement are worth with the servers' real settings",
		Long: `Asks the database, and the broker of each sink, for the settings that they run with, and says what a
commit and an acknowledgement of theirs are worth: what survives a crash, and what does not. Each
finding has the setting as the server says it, what follows from it, and what mends it, to copy.

  ok        as it should be
  note      a limit of what is promised, that many accept
  unknown   it could not be read, and what would let it be read
  warning   it hurts, or loses something when several things fail together
  unsafe    one failure loses what was committed or acknowledged

It changes nothing and publishes nothing. Topics, streams and queues are those that the newest
messages go to, those that sinks name without wildcards, and those of --topic.

It ends with 0; with 4 where something is unsafe, or with --strict where there is a warning; with 5
where a server does not answer. A relay makes the same checks when it starts: relay.on_unsafe says
whether it then warns or refuses.`,
		Example: `  onward doctor
  onward doctor --strict --topic orders.created
  onward doctor --json | jq '.subjects[] | {name, verdict, worth}'`,
		Args: takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error { return a.runDoctor(c.Context(), &f) },
	}
	c.Flags().BoolVar(&f.json, "json", false, "the same as --output json")
	c.Flags().BoolVar(&f.strict, "strict", false, "a warning ends it with 4 as well")
	c.Flags().StringArrayVar(&f.topics, "topic", nil, "look at where messages of this `topic` go, too")
	c.Flags().DurationVar(&f.timeout, "timeout", 15*time.Second, "how long a server may take")
	return c
}

func (a *app) runDoctor(ctx context.Context, f *doctorFlags) (failed error) {
	if f.json {
		a.output = outJSON
	}
	if f.timeout <= 0 {
		return &usageError{err: fmt.Errorf("--timeout %v: must be longer than 0", f.timeout), command: "onward doctor"}
	}
	c, err := a.load(config.NeedDatabase)
	if err != nil {
		return err
	}
	b, err := openBackend(ctx, c.Database, false)
	if err != nil {
		return err
	}
	defer b.close()
	rc := relayConfig(c)
	shut, err := openPublishers(c, false, rc.Sinks)
	defer func() { failed = errors.Join(failed, shut()) }()
	if err != nil {
		return err
	}
	database, err := b.examiner()
	if err != nil {
		return err
	}
	ended := a.tell()
	report := doctor.Examine(ctx, f.timeout, a.subjects(ctx, c, &rc, database, f.topics)...)
	ended()
	if err := a.emitReport(report); err != nil {
		return err
	}
	return reportError(report, f.strict)
}

// subjects are the servers, with their addresses.
func (a *app) subjects(ctx context.Context, c *config.Config, rc *relay.Config, database doctor.Examiner, topics []string) []doctor.Subject {
	all := relay.Subjects(ctx, rc, database, topics)
	for i := range all {
		if all[i].Kind == doctor.KindDatabase {
			all[i].Address = config.MaskURL(c.Database.URL)
		}
		for _, s := range c.Sinks {
			if all[i].Kind == doctor.KindSink && all[i].Name == s.Name {
				all[i].Address = config.MaskURL(s.URL)
			}
		}
	}
	return all
}

// reportError is how the program ends.
func reportError(r doctor.Report, strict bool) error {
	least, what := doctor.Unsafe, "unsafe"
	if strict {
		least, what = doctor.Warning, "unsafe or a warning"
	}
	n := 0
	for i := range r {
		for _, f := range r[i].Findings {
			if f.Severity >= least {
				n++
			}
		}
	}
	if n == 0 {
		return r.Err()
	}
	return errors.Join(&outbox.Error{
		Code: relay.ErrUnsafe.Code, Op: "doctor", Detail: fmt.Sprintf("%s %s", plural(n, "finding"), map[bool]string{true: "is ", false: "are "}[n == 1]+what),
		Hint: "each has what mends it beside it",
	}, r.Err())
}

// The JSON of the doctor.
type (
	reportView struct {
		Verdict  doctor.Severity `json:"verdict"`
		Subjects []answerView    `json:"subjects"`
	}
	answerView struct {
		Kind     string          `json:"kind"`
		Name     string          `json:"name,omitempty"`
		Address  string          `json:"address"`
		Server   string          `json:"server,omitempty"`
		Verdict  doctor.Severity `json:"verdict"`
		Worth    string          `json:"worth,omitempty"`
		Error    string          `json:"error,omitempty"` // the server could not be asked
		Findings []findingView   `json:"findings"`
	}
	findingView struct {
		Check    string          `json:"check"`
		Where    string          `json:"where,omitempty"`
		Severity doctor.Severity `json:"severity"`
		Read     string          `json:"read"`
		Means    string          `json:"means,omitempty"`
		Fix      string          `json:"fix,omitempty"`
	}
)

func viewReport(r doctor.Report) reportView {
	v := reportView{Verdict: r.Verdict(), Subjects: []answerView{}}
	for i := range r {
		s := answerView{
			Kind: r[i].Kind, Name: r[i].Name, Address: r[i].Address, Server: r[i].Server, Verdict: r[i].Verdict(), Worth: r[i].Worth, Findings: []findingView{},
		}
		if err := r[i].Err; err != nil {
			s.Error = err.Error()
		}
		for _, f := range r[i].Findings {
			s.Findings = append(s.Findings, findingView(f))
		}
		v.Subjects = append(v.Subjects, s)
	}
	return v
}

// emitReport writes the report as the output is wanted.
func (a *app) emitReport(r doctor.Report) error {
	if a.output == outTable {
		return writeReport(a.out(), r, a.paint(a.env.OutIsTerminal), a.env.Columns)
	}
	view := viewReport(r)
	return a.emit(view, anys(view.Subjects), nil)
}

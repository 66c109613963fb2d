package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/onwardhq/onward/cmd/onward/internal/demo"
	"github.com/onwardhq/onward/store"
)

// demoView is the JSON of `onward demo` (docs/names.md, section 3).
type demoView struct {
	demo.Proof
	Seed      uint64          `json:"seed"`
	Rate      int             `json:"rate"`
	Fail      demo.Fault      `json:"fail"`
	ForMS     float64         `json:"for_ms"`
	TookMS    float64         `json:"took_ms"`
	Early     bool            `json:"ended_early"`
	SentAgain int             `json:"sent_again"`
	Relays    []demoRelayView `json:"relays"`
	Events    []demoEventView `json:"events"`
}

type demoRelayView struct {
	Relay     string `json:"relay"`
	Published int    `json:"published"`
	SentAgain int    `json:"sent_again"`
}

type demoEventView struct {
	AtMS float64 `json:"at_ms"`
	Text string  `json:"text"`
}

func viewDemo(r *demo.Report) demoView {
	v := demoView{
		Proof: r.Proof, Seed: r.Seed, Rate: r.Rate, Fail: r.Fault, ForMS: millis(r.For), TookMS: millis(r.Took),
		Early: r.Early, SentAgain: r.SentAgain, Relays: []demoRelayView{}, Events: []demoEventView{},
	}
	for _, relay := range r.Relays {
		v.Relays = append(v.Relays, demoRelayView{relay.Name, relay.Published, relay.Again})
	}
	for _, e := range r.Events {
		v.Events = append(v.Events, demoEventView{millis(e.At), e.Text})
	}
	return v
}

// reportDemo writes the proof to stdout.
func (a *app) reportDemo(r *demo.Report) error {
	if a.output != outTable {
		v := viewDemo(r)
		return a.emit(v, []any{v}, nil)
	}
	p := a.paint(a.env.OutIsTerminal)
	var b strings.Builder
	b.WriteString("\nThe whole stream, read back by another connection:\n\n")
	for _, row := range proofRows(r) {
		c := plain
		if row.faulty && row.n > 0 {
			c = red
		}
		figure := fmt.Sprintf("%10s", count(int64(row.n)))
		b.WriteString(strings.TrimRight(fmt.Sprintf("  %-16s%s  %s", row.name, p(figure, c), row.words), " ") + "\n")
	}
	for _, example := range r.Examples {
		b.WriteString("  " + p(example, red) + "\n")
	}
	if err := notSent(&b, r, p, a.env.Columns); err != nil {
		return err
	}
	verdict := p("The proof holds:", green) + " sent is received, in order per key"
	if !r.Holds {
		verdict = p("The proof FAILED", red)
	} else if len(r.NotSent) > 0 {
		verdict += "; the rest is named above"
	}
	b.WriteString("\n" + verdict + ".\n")
	_, err := io.WriteString(a.out(), b.String())
	return err
}

type proofRow struct {
	name   string
	n      int
	words  string
	faulty bool // anything but 0 is a fault
}

func proofRows(r *demo.Report) []proofRow {
	rows := []proofRow{
		{name: "committed", n: r.Committed, words: "messages of " + plural(r.Keys, "order")},
		{name: "rolled back", n: r.RolledBack, words: "on purpose: none of them may arrive"},
		{name: "received", n: r.Received, words: "different messages in the stream"},
	}
	if n := len(r.NotSent); n > 0 {
		words := plural(r.Dead, "dead letter") + ", " + count(int64(r.Waiting)) + " behind them"
		if r.Discarded > 0 {
			words += "; " + count(int64(r.Discarded)) + " discarded"
		}
		rows = append(rows, proofRow{name: "not sent", n: n, words: words})
	}
	twice := "copies in the stream"
	if r.SentAgain > 0 {
		twice = "copies; " + count(int64(r.SentAgain)) + " were sent again, and known by their ids"
	}
	return append(rows,
		proofRow{name: "lost", n: r.Lost, faulty: true},
		proofRow{name: "never committed", n: r.NeverCommitted, words: "and received", faulty: true},
		proofRow{name: "out of order", n: r.OutOfOrder, words: "within their key", faulty: true},
		proofRow{name: "altered", n: r.Altered, words: "by their SHA-256", faulty: true},
		proofRow{name: "twice", n: r.Duplicates, words: twice, faulty: r.Unexplained > 0},
	)
}

// faults are what keeps a proof from holding, in words.
func faults(p *demo.Proof) (all []string) {
	if p.Committed == 0 {
		all = append(all, "nothing was committed")
	}
	for _, f := range []struct {
		n    int
		what string
	}{
		{p.Lost, "lost"},
		{p.NeverCommitted, "never committed"},
		{p.OutOfOrder, "out of order"},
		{p.Altered, "altered"},
		{p.Unexplained, "twice without a cause"},
	} {
		if f.n > 0 {
			all = append(all, count(int64(f.n))+" "+f.what)
		}
	}
	return all
}

const mostNotSent = 12 // rows; JSON has all

// notSent names what was not sent, and says what people do about it.
func notSent(b *strings.Builder, r *demo.Report, p painter, columns int) error {
	if len(r.NotSent) == 0 {
		return nil
	}
	t := newTable("NOT SENT", "SINK", "KEY", "WHY")
	for i, u := range r.NotSent {
		if i == mostNotSent {
			break
		}
		why := text(string(u.State))
		switch {
		case u.State == store.StateDead:
			why = cell{text: "dead: " + visible(u.Code), style: red}
		case u.Behind:
			why.text = "behind a dead letter"
		}
		t.add(text(u.ID), text(u.Sink), text(u.Key), why)
	}
	b.WriteString("\n")
	if err := t.write(b, p, columns); err != nil {
		return err
	}
	if more := len(r.NotSent) - mostNotSent; more > 0 {
		fmt.Fprintf(b, "... and %s more (--output json has them all)\n", count(int64(more)))
	}
	b.WriteString(`
In an outbox that stays, people look at them, mend the cause and try again, or
give one up; then what waits behind it follows, in order:

  onward dead list
  onward dead requeue ID
  onward dead discard ID --reason WHY
`)
	return nil
}

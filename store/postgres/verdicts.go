package postgres

import (
	"strings"
	"unicode/utf8"

	"github.com/onwardhq/onward/store"
)

// verdicts are the verdicts of a settlement, sorted by what the statement does with them: one slice for each column.
type verdicts struct {
	park   verdictRows // from the log
	again  verdictRows
	done   []string // ids
	dead   verdictRows
	dying  verdictRows // dead from the parked rows
	tried  attemptRows
	placed struct{ ids, positions []string }
	asked  int // verdicts on parked messages

	// Keys whose line may have another front now.
	keyPartitions []int32
	keys          []string
}

type verdictRows struct {
	partitions    []int32
	seqs, due     []int64
	ids, reasons  []string
	blocks        []bool
	attempts      []int32
	codes, errors []string
	pauses        []int64
}

type attemptRows struct {
	ids, outcomes, codes, errors []string
	numbers                      []int32
	took                         []int64
}

func sortVerdicts(all []store.Verdict) (v verdicts) {
	for i := range all {
		d := &all[i]
		if d.FromParked {
			v.asked++
		}
		switch {
		case d.To == store.Out && d.FromParked:
			v.done = append(v.done, d.ID.String())
		case d.To == store.Park && d.FromParked:
			v.again.add(d)
		case d.To == store.Park:
			v.park.add(d)
		case d.To == store.Dead && d.FromParked:
			v.dying.add(d)
		case d.To == store.Dead:
			v.dead.add(d)
		}
		if d.To == store.Out && d.Position != "" {
			v.placed.ids, v.placed.positions = append(v.placed.ids, d.ID.String()), append(v.placed.positions, clean(d.Position))
		}
		if d.Tried != nil {
			v.tried.add(d)
		}
		v.touch(d)
	}
	return v
}

// touch notes a key whose line may have another front: something joined it, left it, or holds it.
func (v *verdicts) touch(d *store.Verdict) {
	if d.Key == "" || !d.FromParked && (d.To == store.Out || d.To == store.Park && d.Reason == store.ReasonScheduled) {
		return
	}
	v.keyPartitions, v.keys = append(v.keyPartitions, int32(d.Partition)), append(v.keys, d.Key) //nolint:gosec // at most 16,384
}

func (v *verdicts) none() bool {
	return v.asked == 0 && len(v.park.seqs)+len(v.dead.seqs)+len(v.tried.ids)+len(v.placed.ids) == 0
}

func (r *verdictRows) add(d *store.Verdict) {
	r.partitions, r.seqs, r.ids = append(r.partitions, int32(d.Partition)), append(r.seqs, d.Seq), append(r.ids, d.ID.String()) //nolint:gosec // at most 16,384
	r.reasons, r.due = append(r.reasons, string(d.Reason)), append(r.due, d.Due.Microseconds())
	r.blocks, r.attempts = append(r.blocks, d.Blocks && d.Key != ""), append(r.attempts, int32(d.Attempts)) //nolint:gosec // small
	r.codes, r.errors, r.pauses = append(r.codes, clean(string(d.Code))), append(r.errors, clean(d.Error)), append(r.pauses, d.Pause)
}

func (r *attemptRows) add(d *store.Verdict) {
	t := d.Tried
	r.ids, r.numbers = append(r.ids, d.ID.String()), append(r.numbers, int32(t.No)) //nolint:gosec // small
	r.outcomes, r.codes = append(r.outcomes, clean(t.Outcome)), append(r.codes, clean(string(t.Code)))
	r.errors, r.took = append(r.errors, clean(t.Error)), append(r.took, t.Took.Microseconds())
}

// args are the arguments of queries/session/settle_verdicts.sql from $17 on.
func (v *verdicts) args(relay string) []any {
	p, a, d, y, t := &v.park, &v.again, &v.dead, &v.dying, &v.tried
	return []any{
		relay,
		p.partitions, p.seqs, p.reasons, p.due, p.attempts, p.codes, p.errors,
		a.ids, a.reasons, a.due, a.attempts, a.codes, a.errors,
		v.done,
		d.partitions, d.seqs, d.blocks, d.attempts, d.codes, d.errors,
		y.ids, y.blocks, y.attempts, y.codes, y.errors,
		t.ids, t.numbers, t.outcomes, t.codes, t.errors, t.took,
		v.placed.ids, v.placed.positions,
		p.pauses, a.pauses,
	}
}

// maxText is how many bytes of an error's text are kept.
const maxText = 2048

// clean makes a text that PostgreSQL takes: valid UTF-8 without NUL, at most 2 KiB, cut between characters.
func clean(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

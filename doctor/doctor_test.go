package doctor_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

func TestTheVerdictIsTheWorstFinding(t *testing.T) {
	t.Parallel()
	var d doctor.Diagnosis
	if got := d.Verdict(); got != doctor.Unknown {
		t.Errorf("of no findings it is %v", got)
	}
	for _, s := range []doctor.Severity{doctor.OK, doctor.Note, doctor.Unknown, doctor.Warning, doctor.Unsafe, doctor.OK} {
		d.Add(doctor.Finding{Check: "c-" + s.String(), Severity: s})
		if got, want := d.Verdict(), min(max(s, d.Verdict()), doctor.Unsafe); got != want {
			t.Errorf("with %v it is %v", s, got)
		}
	}
	if d.Verdict() != doctor.Unsafe || !d.Has("c-warning", doctor.Warning) || d.Has("c-warning", doctor.Unsafe) || d.Has("c-none", doctor.OK) {
		t.Errorf("verdict %v, has %v", d.Verdict(), d.Has("c-warning", doctor.Unsafe))
	}
	text, err := doctor.Unsafe.MarshalText()
	if string(text) != "unsafe" || err != nil || doctor.Severity(0).String() != "severity 0" {
		t.Errorf("unsafe is written %q, %v; 0 is %v", text, err, doctor.Severity(0))
	}
}

// The clock is off by what nothing else explains: neither the way there and back, nor the precision of the answer.
func TestAClockIsOffByWhatTheWayThereDoesNotExplain(t *testing.T) {
	t.Parallel()
	before := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	after := before.Add(2 * time.Second)
	for _, c := range []struct {
		said      time.Time
		precision time.Duration
		want      doctor.Severity
		read      string
	}{
		{before.Add(time.Second), 0, doctor.OK, "agrees with this machine's to 2s"},
		{before.Add(-500 * time.Millisecond), 0, doctor.OK, "agrees"},
		{before.Add(-900 * time.Millisecond), time.Second, doctor.OK, "agrees"},
		{before.Add(-2 * time.Second), 0, doctor.Note, "2s behind"},
		{before.Add(-2 * time.Second), 500 * time.Millisecond, doctor.Note, "1.5s behind"},
		{after.Add(3 * time.Second), time.Second, doctor.Note, "3s ahead"},
		{after.Add(time.Minute), 0, doctor.Warning, "1m0s ahead"},
	} {
		f := doctor.Clock("the server", c.said, before, after, c.precision)
		if f.Severity != c.want || !strings.Contains(f.Read, c.read) || (f.Fix == "") != (c.want == doctor.OK) {
			t.Errorf("said %v: %+v, want %v, %q", c.said.Sub(before), f, c.want, c.read)
		}
	}
}

func TestPayloadsThatDoNotFitAreSaid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule, takes int
		want        doctor.Severity
	}{
		{0, outbox.MaxPayload, doctor.OK}, {0, outbox.MaxPayload - 1, doctor.Note}, {100, 100, doctor.OK}, {100, 99, doctor.Warning},
	} {
		q := doctor.Question{MaxPayload: c.rule}
		if f := q.Payload("size", "queue a", "limit = 1", c.takes, "raise it"); f.Severity != c.want || f.Where != "queue a" || (f.Fix == "") != (c.want == doctor.OK) {
			t.Errorf("rule %d, takes %d: %+v, want %v", c.rule, c.takes, f, c.want)
		}
	}
}

// examined answers after a time.
type examined struct {
	after time.Duration
	d     doctor.Diagnosis
	err   error
}

func (e examined) Examine(ctx context.Context, _ doctor.Question) (doctor.Diagnosis, error) {
	select {
	case <-time.After(e.after):
		return e.d, e.err
	case <-ctx.Done():
		return doctor.Diagnosis{}, ctx.Err()
	}
}

// All are asked at once, each for so long; one that does not answer is unknown, and the others count.
func TestSubjectsAreExaminedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bad := doctor.Diagnosis{Findings: []doctor.Finding{{Severity: doctor.Warning}}}
		from := time.Now()
		report := doctor.Examine(t.Context(), 10*time.Second,
			doctor.Subject{Name: "slow", Examiner: examined{after: time.Minute, d: bad}},
			doctor.Subject{Name: "bad", Examiner: examined{after: 9 * time.Second, d: bad}},
			doctor.Subject{Name: "away", Examiner: examined{err: errors.New("refused")}},
			doctor.Subject{Name: "mute"})
		if took := time.Since(from); took != 10*time.Second {
			t.Errorf("it took %v", took)
		}
		if len(report) != 4 || report.Verdict() != doctor.Warning || !errors.Is(report[0].Err, context.DeadlineExceeded) || report[1].Err != nil || report[1].Verdict() != doctor.Warning ||
			report[2].Err == nil || report[3].Err != nil || report[3].Verdict() != doctor.Unknown || report[3].Name != "mute" {
			t.Errorf("the report is %+v", report)
		}
		if err := report.Err(); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("its errors are %v", err)
		}
	})
}

package storetest

import (
	"time"

	"github.com/onwardhq/onward/store"
)

var years = []spec{
	{"YearsOneAndNineThousandAreTimes", farYears},
}

// The first and the last time that a message can name: the one is now, the other one waits alone, and nobody is asked to look
// for it before its time.
func farYears(s *suite) {
	r := s.alone()
	first, last := time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_998_000, time.UTC)
	past, far, loose := s.message("past", "k"), s.message("far", "k"), s.message("loose", "")
	past.AvailableAt, far.AvailableAt, loose.AvailableAt = first, last, last
	s.send(past, far, loose, s.message("b", "k"))
	ts := r.drain()
	var verdicts []store.Verdict
	for _, t := range ts {
		ahead := t.name() == "far" || t.name() == "loose"
		s.want(t.name()+" is ahead", t.Ahead, ahead)
		if ahead {
			verdicts = append(verdicts, fromLog(t, store.Verdict{To: store.Park, Reason: store.ReasonScheduled}))
		}
	}
	s.want("messages", len(ts), 4)
	r.settle(ts, verdicts...)
	heads := r.heads()
	s.want("heads", len(heads.Due), 0)
	if heads.Next < time.Hour {
		s.Errorf("the next one is due in %s, want in thousands of years, or a time long enough", heads.Next)
	}
	s.sendNamed("k", "c")
	s.want("blocked", r.drain()[0].Blocked, false)
	list, err := s.Admin.Messages(s.ctx, store.Filter{Sink: sinkName})
	s.ok(err, "messages")
	at := map[string]time.Time{}
	for _, m := range list.Messages {
		at[m.ID.String()] = m.AvailableAt
		if m.States[0].State == store.StateParked && (m.States[0].DueAt == nil || !m.States[0].DueAt.Equal(last)) {
			s.Errorf("it is due at %v, want %s", m.States[0].DueAt, last)
		}
	}
	s.want("times in the list", []time.Time{at[past.ID.String()].UTC(), at[far.ID.String()].UTC()}, []time.Time{first, last})
	s.want("parked", s.sink().Parked, map[store.Reason]int64{store.ReasonScheduled: 2})
	s.want("blocked keys", s.sink().BlockedKeys, 0)
}

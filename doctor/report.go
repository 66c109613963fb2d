package doctor

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Subject is one server that is examined: the database, or that of a sink.
type Subject struct {
	Kind     string   // KindDatabase, KindSink
	Name     string   // of the sink
	Address  string   // without secrets; for people
	Examiner Examiner // nil: this store or publisher cannot examine its server
	Question Question
}

// The kinds of subjects.
const (
	KindDatabase = "database"
	KindSink     = "sink"
)

// Answer is what was found of a subject.
type Answer struct {
	Subject
	Diagnosis
	Err error // the server could not be asked; then there is no Diagnosis
}

// Report is what was found of all subjects, in their order.
type Report []Answer

// Verdict is the worst of the answers; one that could not be asked is Unknown.
func (r Report) Verdict() Severity {
	worst := OK
	for i := range r {
		worst = max(worst, r[i].Verdict())
	}
	return worst
}

// Err joins the errors of the subjects that could not be asked.
func (r Report) Err() error {
	var all []error
	for i := range r {
		all = append(all, r[i].Err)
	}
	return errors.Join(all...)
}

// Examine asks all subjects at once, each for as long as timeout.
func Examine(ctx context.Context, timeout time.Duration, subjects ...Subject) Report {
	report := make(Report, len(subjects))
	var group sync.WaitGroup
	for i, s := range subjects {
		group.Go(func() { report[i] = examine(ctx, timeout, s) })
	}
	group.Wait()
	return report
}

func examine(ctx context.Context, timeout time.Duration, s Subject) Answer {
	a := Answer{Subject: s}
	if s.Examiner == nil {
		a.Worth = "not known: it has no checks of its own"
		a.Add(Finding{Check: "examinable", Severity: Unknown, Read: "nothing was read", Means: "this " + s.Kind + " has no way to say what its settings are", Fix: "implement doctor.Examiner"})
		return a
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a.Diagnosis, a.Err = s.Examiner.Examine(ctx, s.Question)
	return a
}

package discard

import (
	"context"

	"github.com/onwardhq/onward/doctor"
)

var _ doctor.Examiner = (*Publisher)(nil)

// Examine says that nothing is kept.
func (p *Publisher) Examine(context.Context, doctor.Question) (doctor.Diagnosis, error) {
	return doctor.Diagnosis{
		Server: "discard", Worth: "nothing: each message is forgotten as soon as it is acknowledged",
		Findings: []doctor.Finding{{
			Check: "discard", Severity: doctor.Note, Read: "url = discard:", Means: "what this sink takes counts as published, and is gone", Fix: "name a broker in the sink's url, where that is not meant",
		}},
	}, nil
}

package jsonl

import (
	"context"

	"github.com/onwardhq/onward/doctor"
)

var _ doctor.Examiner = (*Publisher)(nil)

// Examine says whether a line is on the disk when it is acknowledged.
func (p *Publisher) Examine(context.Context, doctor.Question) (doctor.Diagnosis, error) {
	f, isFile := p.target.(*file)
	switch {
	case !isFile:
		return doctor.Diagnosis{
			Server: "stream", Worth: "the line was handed to whoever reads the stream, and nobody knows what became of it",
			Findings: []doctor.Finding{{
				Check: "jsonl-sync", Severity: doctor.Note, Read: "url = jsonl:, standard output",
				Means: "a reader that ends loses what it has not dealt with", Fix: "write a file: jsonl:/path/file.jsonl, with jsonl.sync",
			}},
		}, nil
	case f.sync:
		return doctor.Diagnosis{
			Server: "file", Worth: "the line is on the disk: it survives a crash and a power loss, and not the loss of the disk",
			Findings: []doctor.Finding{{Check: "jsonl-sync", Severity: doctor.OK, Read: "jsonl.sync = true"}},
		}, nil
	}
	return doctor.Diagnosis{
		Server: "file", Worth: "the line is with the system: it survives the end of the relay, and not a crash of the machine",
		Findings: []doctor.Finding{{
			Check: "jsonl-sync", Severity: doctor.Warning, Read: "jsonl.sync = false",
			Means: "what the machine had not yet written to its disk when it crashes is gone, and counts as published", Fix: "jsonl: {sync: true} beside the sink's url",
		}},
	}, nil
}

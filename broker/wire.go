package broker

import (
	"iter"
	"maps"
	"slices"
	"strconv"
)

// Headers yields the headers of the raw wire format, in one order for the same message: Onward's own, then the
// message's under their own names, sorted. Every publisher sends these beside the broker's own slots (docs/names.md,
// section 1). Error texts, attempts and table names are never among them.
func (e Envelope) Headers() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		own := [...]struct{ name, value string }{
			{"onward-id", e.ID.String()},
			{"onward-type", e.Type},
			{"onward-topic", e.Topic},
			{"onward-key", e.Key},
			{"content-type", e.ContentType},
			{"onward-time", e.CreatedAt.UTC().Format(timeFormat)},
			{"onward-correlation-id", e.CorrelationID},
			{"onward-causation-id", e.CausationID},
			{"onward-seq", strconv.FormatInt(e.Seq, 10)},
			{"onward-epoch", strconv.FormatInt(e.Epoch, 10)},
			{"onward-lineage", e.Lineage},
		}
		for _, h := range own {
			if h.value != "" && !yield(h.name, h.value) {
				return
			}
		}
		if e.KeySeq != 0 && !yield("onward-key-seq", strconv.FormatInt(e.KeySeq, 10)) {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(e.Record.Headers)) {
			if !yield(name, e.Record.Headers[name]) {
				return
			}
		}
	}
}

// timeFormat is RFC 3339 with microseconds, as onward-time has it.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

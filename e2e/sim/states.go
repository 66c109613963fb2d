package sim

import (
	"maps"
	"slices"
)

// States are those of interest: where the rules are hard to keep. A run over SeedsToReachAll seeds or more must reach each.
var States = []string{
	"late row", "late rows in pages", "take-over with work in flight", "parked release", "requeue during release", "rebase",
	"kill with work in flight", "reload with work in flight", "promote", "fenced", "stale settle", "session loaded again",
	"commit with an unknown outcome", "call with an unknown outcome", "lost acknowledgement", "late delivery", "no answer", "uncertain",
	"throttled", "breaker open", "partitions given back", "surplus", "graceful stop", "long transaction", "hint", "pause", "resume",
	"requeue", "discard", "retention", "dead", "dead, blocks", "out", "parked retry", "parked behind", "parked scheduled", "parked paused",
	"freeze", "kill", "black hole", "broker outage", "database outage", "database restart",
}

// SeedsToReachAll is how many seeds surely reach every state.
const SeedsToReachAll = 50

// Missing are the states that were not reached.
func Missing(reached Counts) (names []string) {
	for _, name := range States {
		if reached[name] == 0 {
			names = append(names, name)
		}
	}
	return names
}

// Names are the names in order.
func (c Counts) Names() []string { return slices.Sorted(maps.Keys(c)) }

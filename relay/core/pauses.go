package core

import (
	"strings"

	"github.com/onwardhq/onward/store"
)

// pauses are what people hold back, as the last answer of Heads has it. Until the first one has come nothing is published:
// a relay that starts must not send what others hold.
type pauses struct {
	known    bool
	all      []store.Pause
	sink     *store.Pause
	keys     map[string]*store.Pause
	topics   map[string]*store.Pause
	patterns []*store.Pause
}

// take replaces what is known.
func (p *pauses) take(all []store.Pause) {
	*p = pauses{known: true, all: all}
	for i := range all {
		a := &all[i]
		switch {
		case a.Kind == store.PauseSink:
			p.sink = a
		case a.Kind == store.PauseTopic && strings.ContainsAny(a.Name, "*>"):
			p.patterns = append(p.patterns, a)
		case a.Kind == store.PauseTopic:
			set(&p.topics, a)
		case a.Kind == store.PauseKey:
			set(&p.keys, a)
		}
	}
}

func set(m *map[string]*store.Pause, p *store.Pause) {
	if *m == nil {
		*m = map[string]*store.Pause{}
	}
	(*m)[p.Name] = p
}

// stopped reports whether nothing of the sink may be published.
func (p *pauses) stopped() bool { return !p.known || p.sink != nil }

// holding returns what holds a message by its topic or key, the longest; nil: nothing does.
func (p *pauses) holding(it *item) *store.Pause {
	held := p.topics[it.rec.Topic]
	if k := p.keys[it.rec.Key]; k != nil && it.lane != nil && k.Outlasts(held) {
		held = k
	}
	for _, t := range p.patterns {
		if t.Holds(it.rec.Topic, it.rec.Key) && t.Outlasts(held) {
			held = t
		}
	}
	return held
}

// hold parks a message that is paused, in its turn; what comes of its key parks behind it.
func (m *Machine) hold(it *item) bool {
	p := m.pauses.holding(it)
	if p == nil {
		return false
	}
	m.park(it, m.paused(it, p))
	return true
}

func (m *Machine) paused(it *item, p *store.Pause) store.Verdict {
	return m.newVerdict(it, store.Verdict{To: store.Park, Reason: store.ReasonPaused, Pause: p.ID})
}

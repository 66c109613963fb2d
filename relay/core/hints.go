package core

import "time"

// hints are how the machine sleeps where somebody says when there is something to read. It asks its session for hints with a
// read, once an earlier one has found nothing: what is committed behind that read is hinted at. While hints are promised it
// polls more rarely than PollMax, because a hint may be lost.
//
// Hints cost whoever commits, so that those that lead to nothing (they are of another relay's partitions, or of topics that the
// sink leaves) are asked for less and less often, and of messages that come every few milliseconds, which polls find as soon, hardly
// ever.
type hints struct {
	until   time.Duration // hints are promised for what is committed up to then
	lasts   time.Duration // how long they were promised for
	heeded  bool          // the read that is out, or the next one, follows a hint
	missed  bool          // a hint came while a read was out
	empty   bool          // the last read found nothing
	doubted bool          // a late poll found what no hint had said
	pause   time.Duration // since hints lead to nothing; grows to PollMax
	deaf    time.Duration // hints are passed over until then
	found   time.Duration // when a read last found something
	asked   time.Duration // when hints were last promised
	linger  time.Duration // how long nothing must have been found before hints are asked for
}

// wantsHints reports whether the read that is about to go out asks for hints: the one before found nothing, it follows no hint, and what was
// promised is used up or half over. So a promise never ends before the poll that renews it.
func (m *Machine) wantsHints() bool {
	r := &m.reading
	return m.rules.Hints && !m.rules.Once && r.empty && !r.heeded && m.now >= r.deaf && m.now-r.found >= r.linger && r.until-m.now <= r.lasts/2
}

// promised notes for how long there will be hints; 0: none are promised now.
func (m *Machine) promised(d time.Duration) {
	if d > 0 {
		m.reading.lasts, m.reading.until, m.reading.asked = d, m.now+d, m.now
	}
}

// woken takes a hint.
func (m *Machine) woken() {
	r := &m.reading
	r.until = 0 // one hint is all that was promised
	switch {
	case r.out:
		r.missed = true
	case m.now >= r.deaf:
		m.heed()
	}
}

func (m *Machine) heed() {
	m.reading.at, m.reading.heeded = m.now, true
}

// noteFound: a read found something. woken: it followed a hint. first is how soon to poll when the next one finds nothing: where
// messages come every few milliseconds the next is about to come.
func (m *Machine) noteFound(woken bool) (first time.Duration) {
	r := &m.reading
	if woken {
		r.doubted = false
	} else if r.interval > m.rules.PollMax {
		r.doubted = true
	}
	r.pause, r.deaf = 0, 0
	soon, first := 2*m.rules.PollMin, m.rules.PollMin
	if r.found > 0 && m.now-r.found <= soon {
		first /= 4
	}
	if m.now-r.asked <= soon && r.asked > r.found {
		r.linger = min(max(2*r.linger, soon), m.rules.PollMax)
	} else if m.now-r.found > 2*soon {
		r.linger = 0
	}
	r.found = m.now
	return first
}

// misled paces the reads after a hint that led to nothing.
func (m *Machine) misled() {
	r := &m.reading
	r.pause = min(max(r.pause+r.pause/4, m.rules.PollMin), m.rules.PollMax)
	r.deaf = m.now + r.pause
	r.at = r.deaf
}

// sleepMost is the longest time between two polls.
func (m *Machine) sleepMost() time.Duration {
	if r := &m.reading; r.until > m.now && !r.doubted {
		return max(m.rules.PollMax, r.lasts/2)
	}
	return m.rules.PollMax
}

package memstore

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// relay is a running relay as it is registered.
type relay struct {
	id                       outbox.ID
	name, host, version      string
	pid                      int
	lease                    time.Duration
	noLeasing                bool
	sinks                    []string
	settings                 map[string]string    // by sink
	turned                   map[string]time.Time // by sink: the last Renew
	started, heartbeat, ends time.Time            // ends: its lease
}

// expired reports whether others may take the relay's place: its lease is over, or the database's clock went back.
func (r *relay) expired(now time.Time) bool {
	return r.ends.Before(now) || r.ends.After(now.Add(2*r.lease))
}

// live returns the relays that share a sink, in the order in which they get one partition more than others.
func (s *state) live(sink string, now time.Time) []*relay {
	var live []*relay
	for _, r := range s.relays {
		if r.ends.After(now) && slices.Contains(r.sinks, sink) {
			live = append(live, r)
		}
	}
	slices.SortFunc(live, func(a, b *relay) int {
		return cmp.Or(cmp.Compare(a.rank(sink), b.rank(sink)), slices.Compare(a.id[:], b.id[:]))
	})
	return live
}

// rank spreads the remainder of the shares over the relays, differently for each sink.
func (r *relay) rank(sink string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(sink))
	_, _ = h.Write(r.id[:])
	return h.Sum64()
}

// share is how many partitions of a sink the relay should hold; ok is false while its own lease is over.
func (s *state) share(r *relay, sink string, total int, now time.Time) (target, relays int, ok bool) {
	live := s.live(sink, now)
	i := slices.Index(live, r)
	if i < 0 {
		return 0, len(live), false
	}
	target = total / len(live)
	if i < total%len(live) {
		target++
	}
	return target, len(live), true
}

// named returns the relay with this name.
func (s *state) named(name string) *relay {
	for _, r := range s.relays {
		if r.name == name {
			return r
		}
	}
	return nil
}

// takeOverExpired removes every relay but this one whose lease is over, in the order of their ids.
func (db *DB) takeOverExpired(me *relay, now time.Time) {
	var over []*relay
	for _, r := range db.state.relays {
		if r != me && r.expired(now) {
			over = append(over, r)
		}
	}
	slices.SortFunc(over, func(a, b *relay) int { return slices.Compare(a.id[:], b.id[:]) })
	for _, r := range over {
		db.takeOver(r, now)
	}
}

// takeOver removes a relay: its partitions are free, from where they are settled.
func (db *DB) takeOver(r *relay, now time.Time) {
	for _, name := range r.sinks {
		db.leave(r, db.state.sink(name), db.config.Coarse, now)
	}
	delete(db.state.relays, r.id)
}

// leave frees what a relay holds of a sink, and replaces its cursor by nothing.
func (db *DB) leave(r *relay, k *sink, coarse bool, now time.Time) {
	for _, p := range k.parts {
		if p.owner == r {
			p.restore(k, coarse)
			p.free(now)
		}
	}
	if c := k.cursors[r.id]; c != nil {
		k.published += c.published
		delete(k.cursors, r.id)
	}
}

func (p *part) free(now time.Time) {
	p.owner, p.freedAt = nil, now
}

// claim gives the relay up to n free partitions.
func (k *sink) claim(r *relay, n int) {
	for _, p := range k.parts {
		if n <= 0 {
			return
		}
		if p.owner == nil {
			p.owner = r
			p.epoch++
			n--
		}
	}
}

// unattended is how many partitions are free, or held by a relay that has not renewed since this one registered.
func (k *sink) unattended(me *relay) (n int) {
	for _, p := range k.parts {
		if p.owner == nil || p.owner != me && !p.owner.heartbeat.After(me.started) {
			n++
		}
	}
	return n
}

// recheck is when the earliest foreign lease ends, from now; at most once a second is worth it.
func (s *state) recheck(me *relay, now time.Time) time.Duration {
	var soonest time.Duration
	for _, r := range s.relays {
		if r == me {
			continue
		}
		left := min(max(r.ends.Sub(now), time.Microsecond), time.Second)
		if soonest == 0 || left < soonest {
			soonest = left
		}
	}
	return soonest
}

package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// gatherMost is how long, at the most, the first session that looks waits for others of its relay.
const gatherMost = 5 * time.Millisecond

// view is what the database says of a sink.
type view struct {
	target     *int // nil: my lease is over
	free       int
	mine       []int32
	relays     int
	foreign    time.Time // when the earliest foreign lease ends; zero: there is none
	unattended int
	paused     bool           // something is, or was
	due        *time.Duration // until the first parked message that waits for a time is due, whatever its partition; nil: there is none
}

// glance is one look for all sessions of a relay that look at about the same time, as they do twice a second: one statement, whatever
// the number of sinks. Nobody gets an answer of before the question.
type glance struct {
	sinks []string      // who asks; guarded by member.mu until it is sent
	done  chan struct{} // closed when it is answered; then the others may be read
	views map[string]view
	err   error
	left  bool // whoever was to send it gave up
}

// look says what the database says of the session's sink now.
func (s *Session) look(ctx context.Context) (view, error) {
	for {
		g, first := s.member.gather(s.sink)
		if first {
			s.send(ctx, g)
		}
		select {
		case <-g.done:
		case <-ctx.Done():
			return view{}, ctx.Err()
		}
		if !g.left || first {
			return g.views[s.sink], g.err
		}
	}
}

// gather joins the glance that has not been sent yet. first: it is a new one, and the caller sends it.
func (m *member) gather(sink string) (g *glance, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.glance == nil {
		m.glance, first = &glance{done: make(chan struct{})}, true
	}
	g = m.glance
	if !slices.Contains(g.sinks, sink) {
		g.sinks = append(g.sinks, sink)
	}
	return g, first
}

func (s *Session) send(ctx context.Context, g *glance) {
	defer close(g.done)
	t := time.NewTimer(min(gatherMost, s.member.Heartbeat/100))
	select {
	case <-t.C:
	case <-ctx.Done():
		t.Stop()
	}
	m := s.member
	m.mu.Lock()
	m.glance = nil
	sinks := g.sinks
	m.mu.Unlock()
	slices.Sort(sinks)
	sent := time.Now()
	g.err = s.ask(ctx, "look", []any{sinks, m.ID.String()}, func(rows pgx.Rows) (err error) {
		g.views, err = scanViews(rows, sent)
		if err == nil && len(g.views) != len(sinks) {
			err = fmt.Errorf("%d sinks were looked at, %d are known", len(sinks), len(g.views))
		}
		return err
	})
	g.left = g.err != nil && ctx.Err() != nil
}

func scanViews(rows pgx.Rows, sent time.Time) (map[string]view, error) {
	views := make(map[string]view)
	for rows.Next() {
		var sink string
		var v view
		var foreign, due *int64
		if err := rows.Scan(&sink, &v.target, &v.free, &v.mine, &v.relays, &foreign, &v.unattended, &v.paused, &due); err != nil {
			return nil, err
		}
		if foreign != nil {
			v.foreign = sent.Add(time.Duration(*foreign) * time.Microsecond)
		}
		if due != nil {
			d := time.Duration(min(*due, int64(longest/time.Microsecond))) * time.Microsecond
			v.due = &d
		}
		views[sink] = v
	}
	return views, rows.Err()
}

package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

const (
	drawEvery = 100 * time.Millisecond
	lookEvery = 200 * time.Millisecond
)

// draw shows the picture until ctx ends, and once more then.
func (d *demo) draw(ctx context.Context) {
	for {
		d.Show(d.board.look())
		if !sleep(ctx, drawEvery) {
			d.Show(d.board.look())
			return
		}
	}
}

// watch asks the outbox how it stands, as `onward status` and `onward partitions list` do.
func (d *demo) watch(ctx context.Context) {
	for sleep(ctx, lookEvery) {
		status, err := d.admin.Status(ctx)
		if err != nil {
			continue // the file is busy: the next look will do
		}
		partitions, err := d.admin.Partitions(ctx, "")
		if err != nil {
			continue
		}
		owners := map[string]string{}
		for _, p := range partitions {
			owners[p.Sink] = p.Relay
		}
		for _, t := range d.board.saw(&status, owners) {
			d.board.happened(Good, "%s has taken %s over from %s, %s later", t.to, t.sink, t.from, round(t.after))
		}
	}
}

// whereabouts asks for one message that the stream does not have.
func (d *demo) whereabouts(ctx context.Context, m Entry) (u Unsent, err error) {
	id, err := outbox.ParseID(m.ID)
	if err != nil {
		return u, err
	}
	info, err := d.admin.Message(ctx, id)
	if err != nil {
		return u, fmt.Errorf("ask for message %s: %w", m.ID, err)
	}
	u = Unsent{ID: m.ID, Key: m.Key}
	for _, s := range info.States {
		if s.State == store.StateUnknown { // another region's sink
			continue
		}
		u.Sink, u.State, u.Code, u.Error = s.Sink, s.State, string(s.LastCode), s.LastError
		u.Behind = s.State == store.StateParked && s.Reason == store.ReasonBehind
	}
	return u, nil
}

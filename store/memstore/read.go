package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/onwardhq/onward/store"
)

// Read returns the next messages: of the partitions in room fresh ones, shared out, and of all partitions late ones.
func (s *session) Read(ctx context.Context, room store.Room) (store.Page, error) {
	c, err := s.begin(ctx, OpRead)
	if err != nil {
		return store.Page{}, err
	}
	if c.fault.Lost { // the page never came: nothing was handed over
		return store.Page{}, s.end(c, OpRead)
	}
	defer s.db.mu.Unlock()
	s.page++
	page := store.Page{No: s.page}
	if room.Await {
		page.Awaited = s.await(c)
	}
	owned := s.owned(c)
	if len(owned) == 0 {
		return page, nil
	}
	for _, id := range room.Partitions {
		if id >= 0 && id < len(s.inRoom) {
			s.inRoom[id] = true
		}
	}
	if !s.selection.All() {
		for _, p := range owned {
			p.unread = slices.DeleteFunc(slices.Clone(p.unread), func(r *row) bool { return !s.selection.Match(r.Topic) })
		}
	}
	s.allot(owned, room)
	rd := &read{no: page.No}
	for _, p := range owned {
		if n := s.counts[p.id]; n > 0 {
			page.Parts = append(page.Parts, s.handOver(c, p, n, rd))
		}
		s.advance(p)
		page.More = page.More || s.hasMore(p)
	}
	if rd.open > 0 {
		s.reads = append(s.reads, rd)
	}
	if room.Mark {
		page.Mark, page.Past = s.mark, past(owned, s.mark)
	}
	clear(s.counts)
	clear(s.inRoom)
	return page, nil
}

// past lists the partitions of which nothing up to the mark is unread.
func past(owned []*part, mark int64) (all []store.Owned) {
	for _, p := range owned {
		if p.unread.upTo(mark) == 0 {
			all = append(all, store.Owned{Partition: p.id, Epoch: p.epoch})
		}
	}
	return all
}

// owned returns the partitions held, beginning with another one at each read.
func (s *session) owned(c call) []*part {
	n := len(c.sink.parts)
	s.turn = (s.turn + 1) % n
	var owned []*part
	for i := range n {
		if p := c.sink.parts[(s.turn+i)%n]; p.owner == c.relay {
			owned = append(owned, p)
		}
	}
	return owned
}

// allot decides how many messages each partition gives: its late ones, as far as the page goes, and of those in room a
// share of the fresh ones, then what others leave of theirs. One message fits in any room.
func (s *session) allot(owned []*part, room store.Room) {
	page, none, hungry := s.relay.Page, true, 0
	for _, p := range owned {
		late := min(p.unread.upTo(p.fresh), page)
		s.counts[p.id] = late
		page -= late
		none = none && late == 0
		if s.inRoom[p.id] && len(p.unread) > late {
			hungry++
		}
	}
	messages, bytes := min(room.Messages, s.relay.Page), min(room.Bytes, s.relay.PageBytes)
	if hungry == 0 || messages <= 0 {
		return
	}
	for _, share := range [...]int{max(1, messages/hungry), messages} {
		for _, p := range owned {
			if !s.inRoom[p.id] || s.counts[p.id] < p.unread.upTo(p.fresh) {
				continue // a fresh message never passes a late one
			}
			for range min(share, messages, len(p.unread)-s.counts[p.id]) {
				size := len(p.unread[s.counts[p.id]].Payload)
				if size > bytes && !none {
					return
				}
				s.counts[p.id]++
				messages--
				bytes -= size
				none = false
			}
		}
	}
}

// handOver takes the first n unread messages of a partition into a read.
func (s *session) handOver(c call, p *part, n int, rd *read) store.Part {
	rows := p.unread.take(n)
	records := make([]store.Record, n)
	for i, r := range rows {
		records[i].Record = r.Record
		records[i].Ahead = r.AvailableAt.After(c.now)
		if r.Key != "" && len(p.keys) > 0 {
			records[i].Blocked = p.keys[r.Key].blocked(c.now)
		}
	}
	p.reads = append(p.reads, &partRead{read: rd, rows: rows})
	rd.open++
	p.fresh = max(p.fresh, rows[n-1].Seq)
	return store.Part{Owned: store.Owned{Partition: p.id, Epoch: p.epoch}, Records: records}
}

// advance notes that a partition is exhausted: what becomes visible below the last number given is late from now on.
func (s *session) advance(p *part) {
	if len(p.unread) == 0 && s.inRoom[p.id] {
		p.fresh = max(p.fresh, s.db.state.seq)
	}
}

func (s *session) hasMore(p *part) bool {
	return len(p.unread) > 0 && (s.inRoom[p.id] || p.unread[0].Seq <= p.fresh)
}

// blocked reports whether a key has parked messages, scheduled ones not yet due apart, or a blocking dead letter.
func (l *line) blocked(now time.Time) bool {
	if l == nil {
		return false
	}
	if len(l.rows) > 0 || l.blocking > 0 {
		return true
	}
	for _, r := range l.scheduled {
		if !r.due.After(now) {
			return true
		}
	}
	return false
}

package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var reading = []spec{
	{"AnEmptyOutboxGivesEmptyPages", emptyPages},
	{"MessagesComeAsTheyWereWritten", messagesComeWhole},
	{"MessagesOfAKeyComeInOrder", keyInOrder},
	{"RolledBackMessagesAreNeverRead", rolledBackNeverRead},
	{"OpenTransactionsHoldNobodyUp", severalWriters(openHoldsNobody)},
	{"FreshMessagesComeFromRoomOnly", freshInRoomOnly},
	{"APageIsBoundedByMessages", boundedByMessages},
	{"APageIsBoundedByBytes", boundedByBytes},
	{"AMessageLargerThanTheRoomComesAlone", largerThanRoom},
	{"BacklogIsReadWhole", backlogReadWhole},
}

func emptyPages(s *suite) {
	r := s.alone()
	s.want("at first", names(r.drain()), []string(nil)) // it may be that not all partitions are asked at once
	last := uint64(0)
	for range 3 {
		page, ts := r.page(r.room())
		s.want("messages", len(ts), 0)
		s.want("parts", len(page.Parts), 0)
		s.want("more", page.More, false)
		if page.No <= last {
			s.Errorf("read %d follows read %d", page.No, last)
		}
		last = page.No
	}
	page, ts := r.page(store.Room{})
	s.want("messages without room", len(ts)+len(page.Parts), 0)
}

func messagesComeWhole(s *suite) {
	at := s.now()
	m := outbox.Message{
		ID: outbox.NewID(), Topic: "orders.paid", Key: "ünï\\ke'y", Type: "OrderPaid", ContentType: "application/json", Scope: "acme",
		CorrelationID: "cor", CausationID: "cau", AggregateType: "order", AggregateID: "4711", EventID: "e-1",
		Payload: []byte("{\"a\": 1,\x00\xff\r\n \"a\": 2}"), Headers: map[string]string{"traceparent": "00-1", "X-Tenant": "ä\t\"\\"},
		AvailableAt: at.Add(-1500),
	}
	bare := outbox.Message{ID: outbox.NewID(), Topic: "t", Type: "T"}
	receipts := s.send(m, bare)
	r := s.alone()
	var got [2]taken
	for _, t := range r.drain() {
		got[slices.IndexFunc(receipts, func(r outbox.Receipt) bool { return r.ID == t.ID })] = t
	}
	for i, want := range []outbox.Message{m, bare} {
		g := got[i].Message
		if !bytes.Equal(g.Payload, want.Payload) {
			s.Errorf("payload: got %q, want %q", g.Payload, want.Payload)
		}
		if len(g.Headers) != len(want.Headers) {
			s.Errorf("headers: got %v, want %v", g.Headers, want.Headers)
		}
		for name, value := range want.Headers {
			s.want("header "+name, g.Headers[name], value)
		}
		if d := g.AvailableAt.Sub(want.AvailableAt); g.AvailableAt.IsZero() != want.AvailableAt.IsZero() || d > 1000 || d < -1000 {
			s.Errorf("available at %s, want %s", g.AvailableAt, want.AvailableAt)
		}
		if want.ContentType == "" {
			want.ContentType = outbox.DefaultContentType
		}
		for _, x := range []*outbox.Message{&g, &want} {
			x.Payload, x.Headers, x.AvailableAt = nil, nil, at
		}
		s.want("message", fmt.Sprintf("%+v", g), fmt.Sprintf("%+v", want))
		s.want("receipt", receipts[i], outbox.Receipt{ID: want.ID, Partition: got[i].Partition, Seq: got[i].Seq, Tx: receipts[i].Tx})
		s.want("ahead", got[i].Ahead, false)
		s.want("blocked", got[i].Blocked, false)
		if age := s.now().Sub(got[i].CreatedAt); age < 0 || age > s.Patience {
			s.Errorf("created at %s, which is %s ago", got[i].CreatedAt, age)
		}
	}
	s.want("partition of the key", got[0].Partition, s.partitionOf(m.Key))
	s.want("partition without a key", got[1].Partition, s.partitionOf(bare.ID.String()))
}

func keyInOrder(s *suite) {
	r := s.alone()
	var want []string
	for i := range 20 {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		s.sendNamed("k", a, b)
		want = append(want, a, b)
	}
	got := r.drain()
	s.want("order", names(got), want)
	for i := 1; i < len(got); i++ {
		if got[i].Seq <= got[i-1].Seq {
			s.Errorf("seq %d follows %d", got[i].Seq, got[i-1].Seq)
		}
	}
}

func rolledBackNeverRead(s *suite) {
	r := s.alone()
	tx := s.begin()
	receipt := s.write(tx, s.message("never", "k"))[0]
	var before []string
	if !s.OneWriter {
		before = []string{"a"}
		s.sendNamed("k", "a")
	}
	s.want("before the rollback", names(r.drain()), before)
	s.ok(tx.Rollback(s.ctx), "rollback")
	s.sendNamed("k", "b")
	s.want("after the rollback", names(r.drain()), []string{"b"})
	r.settleAll()
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string(nil))
	_, err := s.Admin.Message(s.ctx, receipt.ID)
	s.wantError("show", err, store.ErrNotFound)
}

func openHoldsNobody(s *suite) {
	tx := s.begin()
	s.write(tx, s.message("open", "k"), s.message("open too", "other"))
	r := s.alone()
	for i := range 5 {
		name := fmt.Sprint(i)
		s.sendNamed("k", name)
		s.want("beside an open transaction", names(r.drain()), []string{name})
		r.settleAll()
	}
}

func freshInRoomOnly(s *suite) {
	r := s.alone()
	if s.partitions < 2 {
		s.lacks("two partitions")
		return
	}
	keys := s.keys(2)
	s.sendNamed(keys[0], "in")
	s.sendNamed(keys[1], "out")
	room := r.room()
	room.Partitions = []int{s.partitionOf(keys[0])}
	s.want("in room", names(r.drainRoom(room)), []string{"in"})
	room.Partitions = []int{s.partitionOf(keys[1])}
	s.want("then in room", names(r.drainRoom(room)), []string{"out"})
}

func boundedByMessages(s *suite) {
	r := s.alone()
	var ms []outbox.Message
	for i := range 100 {
		ms = append(ms, s.message(fmt.Sprintf("%03d", i), fmt.Sprintf("key-%d", i%10)))
	}
	s.send(ms...)
	room := r.room()
	room.Messages = 7
	s.wantPages(r, room, 100, 7)
}

// wantPages wants n messages, in the order of their keys, in pages of 1 to most; and nothing after them.
func (s *suite) wantPages(r *relay, room store.Room, n, most int) {
	s.Helper()
	var all []taken
	empty := 0
	for len(all) < n {
		page, ts := r.page(room)
		if len(ts) > most || len(ts) == 0 && !page.More {
			s.Fatalf("a page has %d messages, want 1 to %d", len(ts), most)
		}
		if len(ts) == 0 { // of the partitions that it asked nothing waits
			empty++
		}
		if empty > s.partitions {
			s.Fatalf("%d pages were empty after %d of %d messages", empty, len(all), n)
		}
		all = append(all, ts...)
		if !page.More && len(all) < n {
			s.Fatalf("there is no more after %d of %d messages", len(all), n)
		}
	}
	s.wantOrderOfKeys(all)
	s.want("in the end", names(r.drain()), []string(nil))
}

// wantOrderOfKeys wants the names of each key to grow.
func (s *suite) wantOrderOfKeys(ts []taken) {
	s.Helper()
	last := map[string]string{}
	for _, t := range ts {
		if t.name() <= last[t.Key] {
			s.Errorf("%s of %s follows %s", t.name(), t.Key, last[t.Key])
		}
		last[t.Key] = t.name()
	}
}

func boundedByBytes(s *suite) {
	r := s.alone()
	var ms []outbox.Message
	for i := range 30 {
		m := s.message("", fmt.Sprintf("key-%d", i%5))
		m.Payload = append(fmt.Appendf(nil, "%03d", i), bytes.Repeat([]byte("x"), 997)...)
		ms = append(ms, m)
	}
	s.send(ms...)
	room := r.room()
	room.Bytes = 3500 // each has 1000
	s.wantPages(r, room, 30, 3)
}

func largerThanRoom(s *suite) {
	r := s.alone()
	m := s.message("", "k")
	m.Payload = make([]byte, 5000)
	s.send(s.message("before", "k"), m, s.message("after", "k"))
	room := r.room()
	room.Bytes = 100
	var sizes []int
	for n := 0; len(sizes) < 3 && n < 3+s.partitions; n++ {
		_, ts := r.page(room)
		if len(ts) > 1 {
			s.Errorf("a page has %d messages, want one", len(ts))
		}
		for _, t := range ts {
			sizes = append(sizes, len(t.Payload))
		}
	}
	s.want("sizes", sizes, []int{len("before"), 5000, len("after")})
}

func backlogReadWhole(s *suite) {
	var ms []outbox.Message
	for i := range 1000 {
		key := fmt.Sprintf("key-%d", i%50)
		if i%10 == 0 {
			key = ""
		}
		ms = append(ms, s.message(fmt.Sprintf("%04d", i), key))
	}
	for chunk := range slices.Chunk(ms, 250) {
		s.send(chunk...)
	}
	as := s.long()
	as.Page = s.page(64)
	r := s.join(as).holdAll()
	status := s.sink()
	s.want("backlog", status.Backlog, 1000)
	if status.Lag < 0 || s.Advance == nil && status.Lag == 0 {
		s.Errorf("lag is %s", status.Lag)
	}
	all := r.drain()
	seen := map[outbox.ID]bool{}
	var keyed []taken
	for _, t := range all {
		seen[t.ID] = true
		if t.Key != "" {
			keyed = append(keyed, t)
		}
	}
	s.want("messages", len(all), 1000)
	s.want("different ones", len(seen), 1000)
	s.wantOrderOfKeys(keyed)
	r.settleAll()
	s.want("backlog in the end", s.sink().Backlog, 0)
	s.want("lag in the end", s.sink().Lag, time.Duration(0))
	s.want("published", s.sink().Published, 1000)
}

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
	{"OpenTransactionsHoldNobodyUp", openHoldsNobody},
	{"EveryInterleavingOfThreeTransactionsComesOnceAndInOrder", interleavings},
	{"ALateMessageComesOnceBeforeItsSettle", lateBeforeSettle},
	{"ALateMessageComesOnceAfterItsSettle", lateAfterSettle},
	{"ALateMessageComesAfterAGiveBack", lateAfterGiveBack},
	{"ALateMessageComesAfterATakeOver", lateAfterTakeOver},
	{"LateMessagesComeFromPartitionsOutsideRoom", lateOutsideRoom},
	{"MoreLateMessagesThanAPageComeInOrder", latePass},
	{"MoreLateMessagesThanAPageSurviveACrash", latePassCrash},
	{"FreshMessagesComeFromRoomOnly", freshInRoomOnly},
	{"APageIsBoundedByMessages", boundedByMessages},
	{"APageIsBoundedByBytes", boundedByBytes},
	{"AMessageLargerThanTheRoomComesAlone", largerThanRoom},
	{"BacklogIsReadWhole", backlogReadWhole},
}

func emptyPages(s *suite) {
	r := s.alone()
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
	s.sendNamed("k", "a")
	s.want("before the rollback", names(r.drain()), []string{"a"})
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

// readPolicy says after which events of an interleaving is read.
type readPolicy struct {
	name    string
	reads   func(step int, isCommit bool) bool
	settles func(step int) bool
}

var readPolicies = []readPolicy{
	{"read always", func(int, bool) bool { return true }, func(int) bool { return false }},
	{"read and settle always", func(int, bool) bool { return true }, func(int) bool { return true }},
	{"read after commits", func(_ int, isCommit bool) bool { return isCommit }, func(step int) bool { return step%2 == 0 }},
	{"read in the end", func(int, bool) bool { return false }, func(int) bool { return false }},
}

// interleavings runs three transactions of one key, each with a write and a commit, or a rollback, in every order.
func interleavings(s *suite) {
	r := s.alone()
	orders := interleave(3)
	for n, order := range orders {
		p := readPolicies[n%len(readPolicies)]
		for _, rollsBack := range []int{-1, n % 3} {
			s.interleaving(r, fmt.Sprintf("key-%d-%d", n, rollsBack), order, rollsBack, p)
		}
	}
	for n, order := range orders { // the other policies, without rollback
		for i := 1; i < len(readPolicies); i++ {
			s.interleaving(r, fmt.Sprintf("more-%d-%d", n, i), order, -1, readPolicies[(n+i)%len(readPolicies)])
		}
	}
}

// interleave returns every order of the events 0, 0, 1, 1, ... n-1, n-1: the first of each is a write, the second its commit.
func interleave(n int) (orders [][]int) {
	seen := make([]int, n)
	order := make([]int, 0, 2*n)
	var next func()
	next = func() {
		if len(order) == 2*n {
			orders = append(orders, slices.Clone(order))
			return
		}
		for tx := range n {
			if seen[tx] == 2 {
				continue
			}
			seen[tx]++
			order = append(order, tx)
			next()
			order = order[:len(order)-1]
			seen[tx]--
		}
	}
	next()
	return orders
}

func (s *suite) interleaving(r *relay, key string, order []int, rollsBack int, p readPolicy) {
	s.Helper()
	l := newLedger()
	read := func() {
		for _, t := range r.drain() {
			l.handOver(t.name())
		}
	}
	txs := map[int]Tx{}
	for step, i := range order {
		a, b := fmt.Sprintf("%s/%d-first", key, i), fmt.Sprintf("%s/%d-second", key, i)
		isCommit := txs[i] != nil
		switch {
		case !isCommit:
			txs[i] = s.begin()
			l.write(i, key, a, b)
			s.write(txs[i], s.message(a, key), s.message(b, key))
		case i == rollsBack:
			s.ok(txs[i].Rollback(s.ctx), "rollback")
		default:
			s.commit(txs[i])
			l.commit(a, b)
		}
		if p.reads(step, isCommit) {
			read()
		}
		if p.settles(step) {
			r.settleAll()
		}
	}
	read()
	r.settleAll()
	for _, fault := range l.faults(nil) {
		s.Errorf("order %v, rollback of %d, %s: %s", order, rollsBack, p.name, fault)
	}
}

// late opens a transaction that writes "late", commits one that writes "early" after it, and returns the open one.
func (s *suite) late(key string) Tx {
	s.Helper()
	tx := s.begin()
	s.write(tx, s.message("late", key))
	s.sendNamed(key, "early")
	return tx
}

func lateBeforeSettle(s *suite) {
	r := s.alone()
	tx := s.late("k")
	s.want("first", names(r.drain()), []string{"early"})
	s.commit(tx)
	s.sendNamed("k", "then")
	s.want("second", names(r.drain()), []string{"late", "then"})
	r.settleAll()
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string(nil))
}

func lateAfterSettle(s *suite) {
	r := s.alone()
	tx := s.late("k")
	s.want("first", names(r.drain()), []string{"early"})
	r.settleAll()
	s.sendNamed("k", "between")
	s.want("second", names(r.drain()), []string{"between"})
	s.commit(tx)
	s.want("third", names(r.drain()), []string{"late"})
	r.settleAll()
	s.want("at last", names(r.drain()), []string(nil))
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string(nil))
}

func lateAfterGiveBack(s *suite) {
	r := s.alone()
	tx := s.late("k")
	r.drain()
	r.settleAll()
	r.giveBack(r.held()...)
	s.commit(tx)
	r.holdAll()
	s.want("after the give-back", names(r.drain()), []string{"late"})
	r.settleAll()
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string(nil))
}

func lateAfterTakeOver(s *suite) {
	r := s.join(s.short()).holdAll()
	before, after := s.late("k"), s.late("l")
	r.drain()
	r.settleAll()
	s.commit(before) // while nobody reads
	next := r.successor()
	s.want("committed before the take-over", names(next.drain()), []string{"late"})
	s.commit(after)
	s.want("committed after it", names(next.drain()), []string{"late"})
}

func lateOutsideRoom(s *suite) {
	r := s.alone()
	tx := s.late("k")
	r.drain()
	s.commit(tx)
	s.sendNamed("k", "fresh")
	room := r.room()
	room.Partitions = nil
	s.want("without room", names(r.drainRoom(room)), []string{"late"})
	s.want("with room", names(r.drain()), []string{"fresh"})
}

// pass leaves an open transaction that wrote 60 messages of 3 keys, and another one committed behind it; the relay's
// pages have 8 messages.
func (s *suite) pass(as store.Relay) (*relay, Tx, []string) {
	s.Helper()
	as.Page = 8
	r := s.join(as).holdAll()
	keys := s.keysTogether(3)
	tx := s.begin()
	for i := range 60 {
		s.write(tx, s.message(fmt.Sprintf("%02d", i), keys[i%3]))
	}
	for _, key := range keys {
		s.sendNamed(key, "early")
	}
	s.want("early ones", len(r.drain()), 3)
	r.settleAll()
	return r, tx, keys
}

func latePass(s *suite) {
	r, tx, keys := s.pass(s.long())
	s.commit(tx)
	for _, key := range keys {
		s.sendNamed(key, "then")
	}
	s.wantPass(keys, r.drain())
	r.settleAll()
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string(nil))
}

// wantPass wants each of the messages once, in order, and "then" after them.
func (s *suite) wantPass(keys []string, got []taken) {
	s.Helper()
	for i, key := range keys {
		var want []string
		for n := i; n < 60; n += 3 {
			want = append(want, fmt.Sprintf("%02d", n))
		}
		s.want(key, names(ofKey(got, key)), append(want, "then"))
	}
	s.want("messages", len(got), 63)
}

func ofKey(ts []taken, key string) (found []taken) {
	for _, t := range ts {
		if t.Key == key {
			found = append(found, t)
		}
	}
	return found
}

func latePassCrash(s *suite) {
	r, tx, keys := s.pass(s.short())
	s.commit(tx)
	for _, key := range keys {
		s.sendNamed(key, "then")
	}
	var got []taken
	for len(got) < 20 {
		_, ts := r.page(r.room())
		got = append(got, ts...)
	}
	r.settleAll() // whole reads: nothing of them may come again
	next := r.successor()
	next.as.Page = 8
	s.wantPass(keys, append(got, next.drain()...))
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
	var all []taken
	for len(all) < 100 {
		page, ts := r.page(room)
		if len(ts) > 7 || len(ts) == 0 {
			s.Fatalf("a page has %d messages, want 1 to 7", len(ts))
		}
		all = append(all, ts...)
		if !page.More && len(all) < 100 {
			s.Fatalf("there is no more after %d of 100 messages", len(all))
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
	room.Bytes = 3500
	var all []taken
	for len(all) < 30 {
		page, ts := r.page(room)
		if len(ts) > 3 || len(ts) == 0 {
			s.Fatalf("a page has %d messages of 1000 bytes, want 1 to 3", len(ts))
		}
		all = append(all, ts...)
		if !page.More && len(all) < 30 {
			s.Fatalf("there is no more after %d of 30 messages", len(all))
		}
	}
	s.wantOrderOfKeys(all)
	s.want("in the end", names(r.drain()), []string(nil))
}

func largerThanRoom(s *suite) {
	r := s.alone()
	m := s.message("", "k")
	m.Payload = make([]byte, 5000)
	s.send(s.message("before", "k"), m, s.message("after", "k"))
	room := r.room()
	room.Bytes = 100
	var sizes []int
	for range 3 {
		_, ts := r.page(room)
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
	as.Page = 64
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

package storetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var random = []spec{
	{"RandomSchedulesLoseAndReorderNothing", func(s *suite) { s.schedules(false) }},
	{"RandomSchedulesWithParkingLoseAndReorderNothing", func(s *suite) { s.schedules(true) }},
}

// schedule is a random run of writers and relays. A seed repeats it as far as the database's timing allows.
type schedule struct {
	*suite
	*rand.Rand
	ledger  *ledger
	parks   bool
	keys    []string
	txs     []*openTx
	workers []*worker
	excused map[string]bool // may come twice: a relay that handed it over was lost before it was settled
	history []string
	n, tx   int
	retains store.Retainer // nil: the store does not
}

type openTx struct {
	Tx
	no    int
	names []string
}

// worker is a relay that publishes what it reads at once.
type worker struct {
	*relay
	handed []taken // of reads that are not settled whole
	done   int     // the first of them that are settled
}

// schedules runs some schedules one after the other. STORETEST_SEED repeats one, STORETEST_STEPS makes them longer.
func (s *suite) schedules(parks bool) {
	steps := 250
	if n, err := strconv.Atoi(os.Getenv("STORETEST_STEPS")); err == nil {
		steps = n
	}
	seed := rand.Uint64() //nolint:gosec // it is printed
	if n, err := strconv.ParseUint(os.Getenv("STORETEST_SEED"), 10, 64); err == nil {
		seed = n
	}
	for round := range uint64(3) {
		c := &schedule{
			suite: s, Rand: rand.New(rand.NewPCG(seed, round)), ledger: newLedger(), excused: map[string]bool{}, //nolint:gosec // repeatable
			parks: parks, keys: append(s.keysTogether(2), fmt.Sprint("x", round), fmt.Sprint("y", round), ""),
		}
		c.retains, _ = s.open().(store.Retainer)
		for range steps {
			c.step()
		}
		c.finish()
		if faults := c.ledger.faults(c.excused); faults != nil {
			s.Fatalf("STORETEST_SEED=%d: %s\n%s", seed, strings.Join(faults, "\n"), strings.Join(c.history, "\n"))
		}
	}
}

func (c *schedule) note(format string, args ...any) {
	c.history = append(c.history, fmt.Sprintf(format, args...))
}

func (c *schedule) step() {
	switch n := c.IntN(100); {
	case n < 30:
		c.stepWriter()
	case n < 34 && len(c.workers) < 3:
		c.workers = append(c.workers, c.worker())
		c.note("%s joins", c.workers[len(c.workers)-1].as.Name)
	case len(c.workers) == 0:
	case n < 37:
		c.leave(c.IntN(len(c.workers)))
	case n < 40 && c.Advance != nil:
		c.Advance(time.Duration(c.Int64N(int64(c.ShortLease))))
	case n < 42 && c.parks:
		c.person()
	case n < 48 && c.retains != nil:
		did, err := c.retains.Retain(c.ctx, store.Retention{})
		c.ok(err, "retain")
		c.note("retention removes %d", did.Messages)
	default:
		c.stepWorker(c.workers[c.IntN(len(c.workers))])
	}
}

// worker joins with an id that the seed repeats: shares depend on it.
func (c *schedule) worker() *worker {
	as := c.short()
	as.ID = c.id()
	return &worker{relay: c.join(as)}
}

func (c *schedule) id() (id outbox.ID) {
	binary.BigEndian.PutUint64(id[:8], c.Uint64())
	binary.BigEndian.PutUint64(id[8:], c.Uint64())
	return id
}

func (c *schedule) stepWriter() {
	defer func() {
		for c.OneWriter && len(c.txs) > 0 { // nobody else could write, relays included
			if c.writeOne(c.txs[0]); c.IntN(2) == 0 {
				c.endTx(0)
			}
		}
	}()
	if len(c.txs) < 3 && c.IntN(2) == 0 {
		c.tx++
		c.txs = append(c.txs, &openTx{Tx: c.begin(), no: c.tx})
	}
	if len(c.txs) == 0 {
		return
	}
	i := c.IntN(len(c.txs))
	tx := c.txs[i]
	if c.IntN(2) == 0 {
		c.writeOne(tx)
		return
	}
	c.endTx(i)
}

func (c *schedule) writeOne(tx *openTx) {
	c.n++
	name, key := fmt.Sprintf("%d.%d", tx.no, c.n), c.keys[c.IntN(len(c.keys))]
	c.ledger.write(tx.no, key, name)
	m := c.message(name, key)
	m.ID = c.id()
	c.write(tx, m)
	tx.names = append(tx.names, name)
	c.note("write %s of %q", name, key)
}

func (c *schedule) endTx(i int) {
	tx := c.txs[i]
	c.txs = slices.Delete(c.txs, i, i+1)
	if c.IntN(5) == 0 {
		c.ok(tx.Rollback(c.ctx), "rollback")
		c.note("rollback %d", tx.no)
		return
	}
	c.commit(tx)
	c.ledger.commit(tx.names...)
	c.note("commit %d", tx.no)
}

// leave takes a relay away: gracefully, or it falls silent.
func (c *schedule) leave(i int) {
	w := c.workers[i]
	c.workers = slices.Delete(c.workers, i, i+1)
	if c.IntN(2) == 0 {
		c.note("%s falls silent", w.as.Name)
		c.excuse(w)
		return
	}
	c.settleSome(w, len(w.handed)-w.done)
	c.note("%s leaves", w.as.Name)
	if err := w.session.Close(c.ctx); err != nil {
		c.lost(w, err)
	}
}

// excuse lets what a relay has in flight come again.
func (c *schedule) excuse(w *worker) {
	for _, t := range w.handed {
		c.excused[t.name()] = true
	}
	w.handed, w.done, w.untold = nil, 0, nil
}

// lost takes an error of a session: it was taken over, or is to be loaded again.
func (c *schedule) lost(w *worker, err error) {
	c.Helper()
	c.note("%s: %v", w.as.Name, err)
	switch {
	case errors.Is(err, store.ErrFenced):
		c.workers = slices.DeleteFunc(c.workers, func(o *worker) bool { return o == w })
	case !errors.Is(err, store.ErrReload):
		c.Fatalf("%s: %v", w.as.Name, err)
	default:
		w.session.Reset()
	}
	c.excuse(w)
}

func (c *schedule) stepWorker(w *worker) {
	switch n := c.IntN(10); {
	case n < 3:
		c.renewWorker(w)
	case n < 6:
		c.readSome(w)
	case n < 8 && c.parks:
		c.release(w)
	default:
		c.settleSome(w, c.IntN(len(w.handed)-w.done+1))
	}
}

func (c *schedule) renewWorker(w *worker) {
	lease, err := w.session.Renew(c.ctx, true)
	if err != nil {
		c.lost(w, err)
		return
	}
	w.lease = lease
	if lease.Surplus == 0 {
		return
	}
	c.settleSome(w, len(w.handed)-w.done) // nothing of what is given back may be in flight
	ids := w.held()
	c.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	ids = ids[:min(lease.Surplus, len(ids))]
	c.note("%s gives %d back", w.as.Name, len(ids))
	if err := w.session.GiveBack(c.ctx, ids); err != nil {
		c.lost(w, err)
		return
	}
	w.lease.Owned = slices.DeleteFunc(w.lease.Owned, func(o store.Owned) bool { return slices.Contains(ids, o.Partition) })
}

// readSome reads a page, of a part of the partitions and of little room at times, and publishes it.
func (c *schedule) readSome(w *worker) {
	room := w.room()
	if c.IntN(3) == 0 {
		room.Messages = c.page(1 + c.IntN(5))
	}
	if c.IntN(4) == 0 {
		room.Partitions = slices.DeleteFunc(room.Partitions, func(int) bool { return c.IntN(2) == 0 })
	}
	page, err := w.session.Read(c.ctx, room)
	if err != nil {
		c.lost(w, err)
		return
	}
	var ts []taken
	for _, part := range page.Parts {
		for i, rec := range part.Records {
			ts = append(ts, taken{rec, page.No, i})
		}
	}
	if len(ts) == 0 {
		return
	}
	c.note("%s reads %s", w.as.Name, strings.Join(names(ts), " "))
	if c.parks {
		c.judge(w, ts)
		return
	}
	for _, t := range ts {
		c.ledger.handOver(t.name())
	}
	w.handed = append(w.handed, ts...)
}

// settleSome settles the next n messages that were handed over.
func (c *schedule) settleSome(w *worker, n int) {
	if n <= 0 {
		return
	}
	ts := w.handed[w.done : w.done+n]
	_, err := w.session.Settle(c.ctx, store.Settlement{Done: upTo(ts...), Published: n})
	if err != nil {
		c.lost(w, err)
		return
	}
	c.note("%s settles %s", w.as.Name, strings.Join(names(ts), " "))
	w.done += n
	if w.done == len(w.handed) {
		w.handed, w.done = nil, 0
		return
	}
	whole := 0
	for w.handed[whole].read < w.handed[w.done].read {
		whole++
	}
	w.handed, w.done = w.handed[whole:], w.done-whole
}

// judge publishes what can go, parks the rest, and settles all of it before anything else is read.
func (c *schedule) judge(w *worker, ts []taken) {
	var verdicts []store.Verdict
	shut := map[string]bool{}
	for _, t := range ts {
		switch n := c.IntN(20); {
		case t.Key != "" && (t.Blocked || shut[t.Key]):
			verdicts = append(verdicts, fromLog(t, behind()))
		case n < 3:
			verdicts = append(verdicts, fromLog(t, retryIn(0, 1)))
			shut[t.Key] = true
		case n < 4:
			verdicts = append(verdicts, fromLog(t, dies(t.Key != "", 1)))
			shut[t.Key] = true
		default:
			c.ledger.handOver(t.name())
			w.handed = append(w.handed, t)
		}
	}
	if c.IntN(30) == 0 {
		c.note("%s dies before it settles", w.as.Name)
		c.lost(w, store.ErrFenced)
		return
	}
	_, err := w.session.Settle(c.ctx, store.Settlement{Done: upTo(ts...), Verdicts: verdicts, Published: len(ts) - len(verdicts)})
	if err != nil {
		c.lost(w, err)
		return
	}
	for _, v := range verdicts {
		c.note("%s parks %d as %s, dead %t", w.as.Name, v.Seq, v.Reason, v.To == store.Dead)
	}
	w.handed, w.done = nil, 0
}

// release tries the heads, and sends their followers after those that get through.
func (c *schedule) release(w *worker) {
	heads, err := w.session.Heads(c.ctx, w.held(), 1+c.IntN(5))
	if err != nil {
		c.lost(w, err)
		return
	}
	for _, head := range heads.Due {
		if !c.try(w, head) || head.Key == "" || c.IntN(3) == 0 {
			continue
		}
		key := store.Key{Partition: head.Partition, Key: head.Key}
		followers, err := w.session.Followers(c.ctx, key, store.Place{}, store.Room{Messages: 1 + c.IntN(4), Bytes: 1 << 20})
		if err != nil {
			c.lost(w, err)
			return
		}
		for _, f := range followers {
			if !c.try(w, f) {
				break
			}
		}
	}
}

// try publishes a parked message, or lets it fail; true: it is out.
func (c *schedule) try(w *worker, p store.Parked) bool {
	n := c.IntN(20)
	v := out()
	switch {
	case n == 0:
		v = dies(p.Key != "", p.Attempts+1)
	case n < 4:
		v = retryIn(0, p.Attempts+1)
	}
	name := string(p.Payload)
	if v.To == store.Out {
		c.ledger.handOver(name)
	}
	settled, err := w.session.Settle(c.ctx, store.Settlement{Verdicts: []store.Verdict{fromParked(p, v)}})
	if err != nil {
		if v.To == store.Out {
			c.excused[name] = true
		}
		c.lost(w, err)
		return false
	}
	if settled.Gone > 0 && v.To == store.Out {
		c.Errorf("%s went out and its parked row was gone", name)
	}
	c.note("%s tries parked %s: %d", w.as.Name, name, v.To)
	return v.To == store.Out
}

// person requeues or discards a dead letter.
func (c *schedule) person() {
	list, err := c.Admin.Dead(c.ctx, store.Filter{Sink: sinkName, Limit: 3})
	c.ok(err, "dead")
	if len(list.Dead) == 0 {
		return
	}
	d := list.Dead[c.IntN(len(list.Dead))]
	name := string(c.payload(d.ID))
	act := store.Act{Sink: sinkName, ID: d.ID, Actor: "ann", Reason: "random"}
	if c.IntN(3) == 0 {
		c.ok(c.Admin.Discard(c.ctx, act), "discard")
		c.note("discard %s", name)
		c.ledger.forget(name)
		return
	}
	err = c.Admin.Requeue(c.ctx, act, false)
	if errors.Is(err, store.ErrReorderRefused) { // it was late: those that were published need not stand behind it
		err = c.Admin.Requeue(c.ctx, act, true)
	}
	c.ok(err, "requeue")
	c.note("requeue %s", name)
}

func (c *schedule) payload(id outbox.ID) []byte {
	m, err := c.Admin.Message(c.ctx, id)
	c.ok(err, "show")
	return m.Payload
}

// finish ends all transactions and lets one relay do the rest.
func (c *schedule) finish() {
	for len(c.txs) > 0 {
		c.endTx(0)
	}
	for len(c.workers) > 0 {
		c.leave(0)
	}
	last := c.worker()
	c.workers = []*worker{last}
	c.until("nothing is left", func() bool {
		c.readSome(last)
		c.settleSome(last, len(last.handed)-last.done)
		if c.parks {
			c.release(last)
			c.person()
		}
		if len(c.workers) == 0 { // it died on purpose
			last = c.worker()
			c.workers = append(c.workers, last)
		}
		c.renewWorker(last)
		k := c.sink()
		return k.Backlog == 0 && len(k.Parked) == 0 && k.Dead == 0
	})
	c.ok(last.session.Close(c.ctx), "close")
	c.workers = nil
}

package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/memstore"
)

var ctx = context.Background()

// entry is a message as the world knows it: the truth that relays are held to.
type entry struct {
	n                  int
	receipt            outbox.Receipt
	key                *key // nil: none
	topic              string
	written, committed int           // the steps; 0: not
	due                time.Duration // of a scheduled one
	poison             bool          // the broker never takes it
	aborted            bool
	lost               bool // by the database, after its commit
	copies             int  // that the broker has stored
	failed             bool // the broker has refused it at least once
	allowed            int  // further copies that something which went wrong explains
	cause              string
	discarded          int  // the step
	excused            bool // others of its key may have gone before it: a person wanted that
	openIn             *run // which has sent it, and not settled it
	sent               time.Duration
	answered           bool // the last copy was
	granted            bool // a further copy was allowed because the answer to the last one came too late
	countedIn          *run // in whose window it stands
	spent              int  // answers, and missing ones, that may have cost it an attempt
	slow               bool // it was parked while the last copy was under way, and stands in no window any more
}

func (e *entry) String() string {
	name := "-"
	if e.key != nil {
		name = e.key.name
	}
	return fmt.Sprintf("message %d (key %s, partition %d, seq %d)", e.n, name, e.receipt.Partition, e.receipt.Seq)
}

// wanted reports whether the message must arrive.
func (e *entry) wanted() bool { return e.committed > 0 && !e.lost && e.discarded == 0 }

// key is what must stay in order.
type key struct {
	name    string
	holder  *transaction
	pending []*entry // committed, in the order of writing, and not arrived
	line    int      // step at which parked messages of it were last handed over
}

// transaction of a writer.
type transaction struct {
	w       *world
	tx      *memstore.Tx
	entries []*entry
	over    bool
}

var writer = memstore.NewWriter(memstore.WriterConfig{})

// write begins a transaction, and is called again for the next one.
func (w *world) write() {
	if w.ending {
		return
	}
	w.after(w.upTo(2*w.knobs.writeEvery), nil, w.write)
	t := &transaction{w: w, tx: w.db.Begin()}
	w.open = append(slices.DeleteFunc(w.open, func(t *transaction) bool { return t.over }), t)
	t.add()
	d := w.upTo(4 * w.knobs.latency)
	if w.chance(w.knobs.long) {
		d = w.upTo(20 * time.Second)
		w.reach("long transaction")
		w.after(d/2, nil, t.add)
	}
	w.after(d, nil, t.finish)
}

// add writes messages in the transaction.
func (t *transaction) add() {
	w := t.w
	if t.over {
		return
	}
	for range 1 + w.rng.IntN(w.knobs.inTx) {
		e := &entry{n: len(w.ledger) + 1, topic: topicBlocks}
		m := outbox.Message{ID: idOf(e.n), Type: "T", Payload: payload[:w.rng.IntN(len(payload))]}
		if !w.chance(w.knobs.keyless) {
			k := w.keys[w.rng.IntN(len(w.keys))]
			if k.holder != nil && k.holder.over {
				k.holder = nil
			}
			if k.holder != t && k.holder != nil && w.chance(w.knobs.serialized) {
				continue // it waits for that one; another time
			}
			k.holder, e.key, m.Key = t, k, k.name
		}
		if w.chance(w.knobs.skips) {
			e.topic = topicSkips
		}
		m.Topic = e.topic
		if w.chance(w.knobs.scheduled) {
			e.due = w.now + w.upTo(5*time.Second)
			m.AvailableAt = epoch.Add(e.due)
		}
		e.poison = w.chance(w.knobs.poison)
		receipt, err := writer.Write(ctx, t.tx, m)
		if err != nil { // the server has forgotten the transaction
			return
		}
		e.receipt, e.written = receipt, w.steps
		w.trace.note(1, uint64(e.n), uint64(receipt.Seq)) //nolint:gosec // neither is negative
		w.trace.say(w, "write %s", e)
		w.ledger = append(w.ledger, e)
		t.entries = append(t.entries, e)
	}
}

// finish ends the transaction in one way or another.
func (t *transaction) finish() {
	if t.over {
		return
	}
	if t.w.chance(t.w.knobs.rollback) {
		t.over = true
		_ = t.tx.Rollback()
		t.abort()
		return
	}
	t.commit()
}

func (t *transaction) abort() {
	for _, e := range t.entries {
		e.aborted = true
	}
	t.w.trace.note(2, uint64(len(t.entries)))
	t.w.trace.say(t.w, "rolled back: %v", t.entries)
}

func (t *transaction) commit() {
	if t.over {
		return
	}
	t.over = true
	w := t.w
	err := t.tx.Commit()
	if err != nil && !errors.Is(err, errAnswerLost) {
		t.abort()
		return
	}
	if err != nil {
		w.reach("commit with an unknown outcome")
	}
	for _, e := range t.entries {
		e.committed = w.steps
		if e.key != nil && e.due == 0 {
			e.key.add(e)
		}
	}
	w.trace.note(3, uint64(len(t.entries)))
	w.trace.say(w, "commit %v", t.entries)
	for _, p := range w.procs {
		p.hint()
	}
}

// add keeps the pending messages in the order of writing.
func (k *key) add(e *entry) {
	if slices.Contains(k.pending, e) {
		return
	}
	i := len(k.pending)
	for i > 0 && k.pending[i-1].n > e.n {
		i--
	}
	k.pending = slices.Insert(k.pending, i, e)
}

func (k *key) remove(e *entry) {
	if i := slices.Index(k.pending, e); i >= 0 {
		k.pending = slices.Delete(k.pending, i, i+1)
	}
}

var payload = make([]byte, 60)

// idOf is the id of the n-th message; entryOf finds the message again.
func idOf(n int) (id outbox.ID) {
	id[6], id[8] = 0x70, 0x80
	binary.BigEndian.PutUint32(id[12:], uint32(n)) //nolint:gosec // a run has some thousand messages
	return id
}

func (w *world) entryOf(id outbox.ID) *entry {
	return w.ledger[binary.BigEndian.Uint32(id[12:])-1]
}

package demo

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/onwardhq/onward/outbox"
)

// Regions are where orders come from. Each has a sink of its own, which takes the topics of its region.
var Regions = []string{"eu", "us", "asia"}

// Poison is what is wrong with a message, so that the stream refuses it.
type Poison string

// The kinds of poison.
const (
	Harmless Poison = ""
	TooLarge Poison = "too large"  // payload and headers are larger than the stream takes
	Stranger Poison = "no subject" // its topic is none of the stream's subjects
)

const (
	mostOpen  = 60              // orders that go on at once; then one of them is finished before another is placed
	largeNote = smallestMax * 2 // bytes
)

// change is one thing that happens to an order: one transaction of the service.
type change struct {
	Step       int // from 1
	Order      string
	Region     string
	Customer   string
	State      string // of the order, afterwards
	TotalCents int
	N          int // numbers the messages of the order from 1
	Message    outbox.Message
	RolledBack bool // the service changes its mind before it commits
	Poison     Poison
}

// order is an order that goes on.
type order struct {
	id, region, customer string
	cents, n, items      int
	state                string
}

// workload makes changes out of a seed: the same seed and the same poison, the same changes.
type workload struct {
	seed   uint64
	chance *rand.Rand
	step   int
	placed int
	open   []*order
	poison map[int]Poison // by step
}

func newWorkload(seed uint64, poison map[int]Poison) *workload {
	return &workload{seed: seed, chance: rand.New(rand.NewPCG(seed, 0x6f6e77617264)), poison: poison}
}

var (
	customers = []string{"ada", "grace", "edsger", "barbara", "donald", "radia", "leslie", "frances"}
	items     = []string{"tea", "lamp", "chair", "bread", "violin", "kettle", "map", "clock"}
)

// next is the next change.
func (w *workload) next() change {
	w.step++
	poison := w.poison[w.step]
	o := w.pick()
	before := *o
	what, item := o.advance(w.chance)
	c := change{
		Step: w.step, Order: o.id, Region: o.region, Customer: o.customer, State: o.state, TotalCents: o.cents, N: o.n,
		Poison: poison, RolledBack: poison == Harmless && w.chance.IntN(20) == 0,
	}
	c.Message = w.message(&c, what, item)
	if c.RolledBack {
		*o = before // as if it had not happened, which is what the consumers have to see
	}
	if o.n == 0 || o.state == "shipped" {
		w.close(o)
	}
	return c
}

// pick is an order that goes on, or a new one.
func (w *workload) pick() *order {
	if n := len(w.open); n == mostOpen || n > 0 && w.chance.IntN(4) > 0 {
		return w.open[w.chance.IntN(n)]
	}
	w.placed++
	region := Regions[w.chance.IntN(len(Regions))]
	o := &order{
		id: fmt.Sprintf("%s-%d", region, 1000+w.placed), region: region, customer: customers[w.chance.IntN(len(customers))],
		items: 1 + w.chance.IntN(5),
	}
	w.open = append(w.open, o)
	return o
}

func (w *workload) close(o *order) {
	for i := range w.open {
		if w.open[i] == o {
			w.open = append(w.open[:i], w.open[i+1:]...)
			return
		}
	}
}

// advance moves the order on, and says what happened to it.
func (o *order) advance(chance *rand.Rand) (what, item string) {
	o.n++
	switch {
	case o.n == 1:
		o.state, what = "open", "OrderPlaced"
	case o.items > 0:
		o.items--
		o.cents += 100 * (1 + chance.IntN(80))
		what, item = "ItemAdded", items[chance.IntN(len(items))]
	case o.state == "open":
		o.state, what = "paid", "OrderPaid"
	default:
		o.state, what = "shipped", "OrderShipped"
	}
	return what, item
}

// message announces a change. Its id comes from the seed and the step, so that a run can be repeated.
func (w *workload) message(c *change, what, item string) outbox.Message {
	payload := map[string]any{"order": c.Order, "n": c.N, "customer": c.Customer, "state": c.State, "total_cents": c.TotalCents}
	if item != "" {
		payload["item"] = item
	}
	topic := "orders." + c.Region
	switch c.Poison {
	case TooLarge:
		payload["note"] = strings.Repeat("far too long. ", largeNote/14)
	case Stranger:
		topic += ".returns"
	case Harmless:
	}
	text, _ := json.Marshal(payload) // of texts and numbers: it cannot fail
	return outbox.Message{
		ID: outbox.IDFrom("onward demo", fmt.Sprintf("%d/%d", w.seed, c.Step)), Topic: topic, Key: c.Order, Type: what,
		ContentType: "application/json", Payload: text,
	}
}

// poisoned spreads two messages that are too large and two that have no subject over the first part of a run of so many steps.
func poisoned(steps int) map[int]Poison {
	at := map[int]Poison{}
	for i, kind := range []Poison{TooLarge, Stranger, TooLarge, Stranger} {
		at[max(i+1, steps*(i+1)/20)] = kind // at 5, 10, 15 and 20 of 100
	}
	return at
}

package brokertest_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
)

// defect is a publisher over membroker that breaks one sentence of the contract.
type defect struct {
	name    string
	caught  string // the case that must fail
	config  membroker.Config
	publish func(d *double, ctx context.Context, batch []broker.Envelope, done func(int, broker.Result))
	claims  func(*broker.Capabilities)
	check   func(d *double, ctx context.Context) error
	close   func(d *double, ctx context.Context) error
	freeze  func(d *double)
}

type double struct {
	*membroker.Publisher
	defect defect
	mu     sync.Mutex
	held   []broker.Envelope
	frozen bool
}

func (d *double) Capabilities() broker.Capabilities {
	c := d.Publisher.Capabilities()
	if d.defect.claims != nil {
		d.defect.claims(&c)
	}
	return c
}

func (d *double) Publish(ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
	if d.defect.publish == nil {
		d.Publisher.Publish(ctx, batch, done)
		return
	}
	d.defect.publish(d, ctx, batch, done)
}

func (d *double) Check(ctx context.Context) error {
	if d.defect.check == nil {
		return d.Publisher.Check(ctx)
	}
	return d.defect.check(d, ctx)
}

func (d *double) Close(ctx context.Context) error {
	if d.defect.close == nil {
		return d.Publisher.Close(ctx)
	}
	return d.defect.close(d, ctx)
}

// answering passes on a batch whose answers are changed.
func answering(change func(d *double, e broker.Envelope, r *broker.Result)) func(*double, context.Context, []broker.Envelope, func(int, broker.Result)) {
	return func(d *double, ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
		d.Publisher.Publish(ctx, batch, func(i int, r broker.Result) {
			change(d, batch[i], &r)
			done(i, r)
		})
	}
}

// sending passes on a batch whose messages are changed on the way.
func sending(change func(e *broker.Envelope)) func(*double, context.Context, []broker.Envelope, func(int, broker.Result)) {
	return func(d *double, ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
		changed := slices.Clone(batch)
		for i := range changed {
			record := *changed[i].Record
			changed[i].Record = &record
			change(&changed[i])
		}
		d.Publisher.Publish(ctx, changed, done)
	}
}

var window = membroker.Config{Dedup: 100 * time.Millisecond}

var defects = []defect{
	{name: "answers twice", caught: "answers each index exactly once", publish: func(d *double, ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
		d.Publisher.Publish(ctx, batch, func(i int, r broker.Result) { done(i, r); done(i, r) })
	}},
	{name: "forgets an answer", caught: "answers each index exactly once", publish: func(d *double, ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
		d.Publisher.Publish(ctx, batch, func(i int, r broker.Result) {
			if i != 7 {
				done(i, r)
			}
		})
	}},
	{name: "gives no code", caught: "answers with an outcome, a code and a cause", publish: answering(func(_ *double, _ broker.Envelope, r *broker.Result) { r.Code = "" })},
	{name: "fails under load", caught: "overlaps batches", config: membroker.Config{Faults: []membroker.Rule{membroker.Every(40, membroker.Fault{Outcome: broker.Unavailable})}}},
	{name: "ignores the context", caught: "sends nothing after the context ended", publish: func(d *double, _ context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
		d.Publisher.Publish(context.Background(), batch, done)
	}},
	{
		name: "calls sent messages unavailable", caught: "answers all when the context ends meanwhile", config: membroker.Config{Latency: time.Second},
		publish: answering(func(_ *double, _ broker.Envelope, r *broker.Result) {
			if r.Outcome == broker.Uncertain {
				r.Outcome = broker.Unavailable
			}
		}),
	},
	{name: "changes the batch", caught: "leaves the batch as it is and keeps nothing", publish: func(d *double, ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
		for _, e := range batch {
			if e.Record.Headers != nil {
				e.Record.Headers["h"] = "changed"
			}
		}
		d.Publisher.Publish(ctx, batch, done)
	}},
	{name: "reads after it answered", caught: "leaves the batch as it is and keeps nothing", publish: func(d *double, ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
		if ctx.Err() != nil {
			d.Publisher.Publish(ctx, batch, done)
			return
		}
		for i := range batch {
			done(i, broker.Result{Outcome: broker.Accepted})
		}
		d.Publisher.Publish(ctx, batch, func(int, broker.Result) {})
	}},
	{name: "swaps two of a key", caught: "keeps the order of a key", publish: func(d *double, ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.held == nil && len(batch) > 0 && batch[0].Key == "key-3" && batch[0].Seq > 20 {
			d.held = batch[:1]
			done(0, broker.Result{Outcome: broker.Accepted})
			d.Publisher.Publish(ctx, batch[1:], func(i int, r broker.Result) { done(i+1, r) })
			return
		}
		d.Publisher.Publish(ctx, batch, done)
		if len(d.held) > 0 && slices.ContainsFunc(batch, func(e broker.Envelope) bool { return e.Key == "key-3" }) {
			d.Publisher.Publish(ctx, d.held, func(int, broker.Result) {})
			d.held = []broker.Envelope{}
		}
	}},
	{name: "trims a key", caught: "carries headers and payload byte for byte", publish: sending(func(e *broker.Envelope) { e.Key = strings.TrimSuffix(e.Key, "key") })},
	{name: "drops a header", caught: "carries headers and payload byte for byte", publish: sending(func(e *broker.Envelope) { e.CausationID = "" })},
	{name: "sends the attempt", caught: "carries headers and payload byte for byte", publish: sending(func(e *broker.Envelope) {
		e.Record.Headers = map[string]string{"onward-attempt": "1"}
	})},
	{name: "ends payloads at NUL", caught: "carries payloads of any bytes", publish: sending(func(e *broker.Envelope) {
		if i := slices.Index(e.Payload, 0); i >= 0 {
			e.Payload = e.Payload[:i]
		}
	})},
	{name: "accepts and loses", caught: "accepts only what another connection reads", config: membroker.Config{Faults: []membroker.Rule{membroker.Nth(5, membroker.Fault{Outcome: broker.Accepted})}}},
	{name: "claims deduplication", caught: "drops duplicates within the window", claims: func(c *broker.Capabilities) { c.Dedup = time.Hour }},
	{name: "claims a longer window", caught: "remembers ids for the whole window", config: window, claims: func(c *broker.Capabilities) { c.Dedup = 2 * time.Second }},
	{name: "takes the number for the id", caught: "tells messages apart by their ids alone", config: membroker.Config{Dedup: time.Minute}, publish: sending(func(e *broker.Envelope) {
		e.ID = outbox.ID{15: byte(e.Seq), 14: byte(e.Seq >> 8)} //nolint:gosec // a few hundred
	})},
	{name: "claims positions", caught: "names positions that grow", claims: func(c *broker.Capabilities) { c.Positions = true }},
	{name: "repeats a position", caught: "names positions that grow", config: membroker.Config{Positions: true}, publish: answering(func(_ *double, _ broker.Envelope, r *broker.Result) { r.Position = "1" })},
	{name: "claims a pipeline", caught: "keeps order in a pipeline", claims: func(c *broker.Capabilities) { c.Pipeline = true }},
	{name: "claims too many bytes", caught: "takes MaxBytes and no more", config: membroker.Config{MaxBytes: 1000}, claims: func(c *broker.Capabilities) { c.MaxBytes++ }},
	{name: "claims too few bytes", caught: "takes MaxBytes and no more", config: membroker.Config{MaxBytes: 1000}, claims: func(c *broker.Capabilities) { c.MaxBytes-- }},
	{name: "accepts what nothing takes", caught: "rejects what nothing takes"},
	{name: "checks by publishing", caught: "checks without publishing", check: func(d *double, ctx context.Context) error {
		if err := d.Publisher.Check(ctx); err != nil {
			return err
		}
		d.Publisher.Publish(ctx, []broker.Envelope{{Record: &outbox.Record{Message: outbox.Message{Topic: "t"}}}}, func(int, broker.Result) {})
		return nil
	}},
	{name: "returns early from Close", caught: "waits in Close", config: membroker.Config{Latency: 50 * time.Millisecond}, close: func(*double, context.Context) error { return nil }},
	{name: "hangs in Close", caught: "answers all when Close is cut short", config: membroker.Config{Latency: 3 * time.Second}, close: func(d *double, _ context.Context) error {
		return d.Publisher.Close(context.Background())
	}},
	{name: "publishes after Close", caught: "takes nothing after Close", close: func(*double, context.Context) error { return nil }},
	{name: "refuses in an outage", caught: "survives an outage", publish: answering(func(_ *double, _ broker.Envelope, r *broker.Result) {
		if r.Outcome == broker.Unavailable {
			r.Outcome = broker.Rejected
		}
	})},
	{name: "delivers after an outage what it called unavailable", caught: "survives an outage", publish: func(d *double, ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.Publisher.Check(ctx) == nil && len(d.held) > 0 {
			d.Publisher.Publish(ctx, d.held, func(int, broker.Result) {})
			d.held = nil
		}
		d.Publisher.Publish(ctx, batch, func(i int, r broker.Result) {
			if r.Outcome == broker.Unavailable {
				d.held = append(d.held, batch[i])
			}
			done(i, r)
		})
	}},
	{name: "loses what an outage met", caught: "keeps order through an outage", publish: answering(func(_ *double, _ broker.Envelope, r *broker.Result) {
		if r.Outcome == broker.Unavailable {
			*r = broker.Result{Outcome: broker.Accepted}
		}
	})},
	{
		name: "blocks while the broker is silent", caught: "returns while the broker is silent",
		freeze: func(d *double) { d.frozen = true },
		publish: func(d *double, ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
			if d.frozen {
				<-ctx.Done()
			}
			d.Publisher.Publish(ctx, batch, done)
		},
	},
}

// breakVariable tells a child process which defect to run the suite on.
const breakVariable = "ONWARD_BROKERTEST_DEFECT"

// TestSuiteCatchesDefects runs the suite on each defect in a process of its own, and wants its case to fail.
func TestSuiteCatchesDefects(t *testing.T) {
	t.Parallel()
	for _, d := range defects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			name := "^TestDefect$/^" + strings.ReplaceAll(d.caught, " ", "_") + "$"
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+name) //nolint:gosec // this test's own binary
			child.Env = append(os.Environ(), breakVariable+"="+d.name)
			out, err := child.CombinedOutput()
			if err == nil {
				t.Fatalf("%q passed:\n%s", d.caught, out)
			}
			if !strings.Contains(string(out), "--- FAIL: TestDefect/"+strings.ReplaceAll(d.caught, " ", "_")) || strings.Contains(string(out), "panic:") {
				t.Errorf("%q did not fail by an assertion:\n%s", d.caught, out)
			}
		})
	}
}

func TestDefect(t *testing.T) {
	t.Parallel()
	name := os.Getenv(breakVariable)
	if name == "" {
		return // run by TestSuiteCatchesDefects alone
	}
	i := slices.IndexFunc(defects, func(d defect) bool { return d.name == name })
	brokertest.Run(t, func(*testing.T) brokertest.Harness { return defects[i].harness() })
}

func (d defect) harness() brokertest.Harness {
	poisoned := membroker.When(func(e broker.Envelope) bool { return e.Type == "poison" }, membroker.Fault{Outcome: broker.Retry})
	d.config.Faults = append(slices.Clone(d.config.Faults), poisoned)
	b := membroker.New(d.config)
	var last *double
	h := brokertest.Harness{
		Topic: "t", Unroutable: "nowhere", Patience: 2 * time.Second,
		Open: func(*testing.T) broker.Publisher {
			last = &double{Publisher: b.Publisher(), defect: d}
			return last
		},
		Read:   func(ctx context.Context, n int) ([]brokertest.Message, error) { return readAll(ctx, b, n) },
		Poison: func(e *broker.Envelope) { e.Type = "poison" },
		Stop:   func(*testing.T) { b.SetUnavailable(true) },
		Start:  func(*testing.T) { b.SetUnavailable(false) },
	}
	if d.freeze != nil {
		h.Freeze = func(*testing.T) func() {
			d.freeze(last)
			return func() { last.frozen = false }
		}
	}
	return h
}

func readAll(ctx context.Context, b *membroker.Broker, n int) ([]brokertest.Message, error) {
	if n > 0 {
		if _, err := b.Read(ctx, "t", n-1); err != nil {
			return nil, err
		}
	}
	var out []brokertest.Message
	for _, m := range b.Messages("t") {
		r := brokertest.Message{Payload: m.Payload}
		for _, h := range m.Headers {
			r.Headers = append(r.Headers, brokertest.Header(h))
		}
		out = append(out, r)
	}
	return out, nil
}

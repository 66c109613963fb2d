package kafka

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// transactional makes a publisher with transactions that has claimed partition 0 of the outbox.
func (b *bench) transactional(of Transactions) *Publisher {
	b.tb.Helper()
	p := b.publisher(Config{Transactions: of})
	mustClaim(b.tb, p, 0)
	return p
}

func mustClaim(tb testing.TB, p *Publisher, partitions ...int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), longWait)
	defer cancel()
	if err := p.Claim(ctx, partitions); err != nil {
		tb.Fatal(err)
	}
}

func driveAlreadyThere(t *testing.T) {
	b := newBench(t, commonURL(t), 1)
	of, m := b.transactions(), message(b.topic, "k")
	p := b.transactional(of)
	want(t, publish(t, t.Context(), p, m)[0], taken)
	want(t, publish(t, t.Context(), p, m)[0], alreadyThere)
	next := b.transactional(of)
	want(t, publish(t, t.Context(), next, m)[0], alreadyThere)
	next.Settled([]broker.Published{{Partition: 0, ID: m.ID}})
	want(t, publish(t, t.Context(), next, m)[0], taken) // a replay, say
}

func driveUnclaimed(t *testing.T) {
	b := newBench(t, commonURL(t), 1)
	of := b.transactions()
	p := b.publisher(Config{Transactions: of})
	want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], unclaimed)
	mustClaim(t, p, 0, 1)
	want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], taken)
	b.transactional(of)
	want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], unclaimed)
	other := message(b.topic, "k")
	other.Partition = 1
	want(t, publish(t, t.Context(), p, other)[0], taken) // that one is left
}

func driveIDNotAllowed(t *testing.T) {
	c := theCluster(t)
	b := c.bench(t, []int32{1})
	of := b.transactions()
	for _, topic := range []string{b.topic, of.Topic} {
		c.allow(t, "writes", topic, kmsg.ACLOperationWrite)
		c.allow(t, "writes", topic, kmsg.ACLOperationRead)
	}
	p := c.dial(t, Config{Transactions: of}, "plain", "writes")
	until(t, "the user may write", func() bool {
		err := p.Check(t.Context())
		return err != nil && strings.Contains(outbox.Hint(err), "--transactional-id "+of.ID+"-")
	})
	want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], idNotAllowed)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := p.Claim(ctx, []int{0}); err == nil || !strings.Contains(err.Error(), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED") {
		t.Errorf("Claim: %v, want the broker's own words", err)
	}
}

func driveNoCoordinator(t *testing.T) {
	c := theCluster(t)
	b := c.bench(t, []int32{1})
	of := b.transactions()
	var p *Publisher
	g := &gate{to: c.ports["plain2"]}
	until(t, "an id has its coordinator on the second broker", func() bool {
		p = b.publisher(Config{Transactions: of, AckTimeout: 20 * time.Second}, kgo.Dialer(g.dial))
		r := kmsg.NewPtrFindCoordinatorRequest()
		r.CoordinatorType, r.CoordinatorKey, r.CoordinatorKeys = 1, p.tx.id, []string{p.tx.id}
		answer, err := r.RequestWith(b.context(), b.admin)
		return err == nil && len(answer.Coordinators) == 1 && answer.Coordinators[0].NodeID == 2
	})
	mustClaim(t, p, 0)
	want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], taken)
	c.without2(t, func() {
		g.shut(true)
		defer g.shut(false)
		until(t, "the coordinator is lost", func() bool {
			r := publish(t, t.Context(), p, message(b.topic, "k"))[0]
			if strings.Contains(r.Err.Error(), "COORDINATOR_NOT_AVAILABLE") {
				want(t, r, noCoordinator)
				return true
			}
			return false
		})
	})
	until(t, "it is back", func() bool { return publish(t, t.Context(), p, message(b.topic, "k"))[0].Outcome == broker.Accepted })
}

// gate lets a client connect to every broker, or not to one: a broker that is stopped would let it wait.
type gate struct {
	to     int
	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

func (g *gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	guarded := strings.HasSuffix(address, ":"+strconv.Itoa(g.to))
	if guarded && g.closed {
		return nil, syscall.ECONNREFUSED
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if guarded && err == nil {
		g.conns = append(g.conns, c)
	}
	return c, err
}

func (g *gate) shut(closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = closed
	for _, c := range g.conns {
		_ = c.Close()
	}
	g.conns = nil
}

func driveBadTimeout(t *testing.T) {
	c := theCluster(t)
	b := c.bench(t, []int32{1})
	of := b.transactions()
	of.Timeout = 2 * time.Minute // the brokers' longest is one
	want(t, publish(t, t.Context(), b.publisher(Config{Transactions: of}), message(b.topic, "k"))[0], badTimeout)
}

func driveNoProgress(t *testing.T) {
	b := newBench(t, commonURL(t), 1)
	of := Transactions{ID: b.topic, Topic: b.topic + ".none"}
	p := b.publisher(Config{Transactions: of})
	want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], noProgress)
	if err := p.Check(t.Context()); outbox.CodeOf(err) != broker.CodeUnroutable || !strings.Contains(outbox.Hint(err), "--topic "+of.Topic) {
		t.Errorf("Check: %v (hint %q)", err, outbox.Hint(err))
	}
	b.makeTopic(of.Topic, 1, "cleanup.policy=delete")
	until(t, "the topic is seen", func() bool { return outbox.CodeOf(p.Check(t.Context())) == codeUnsafe })
	of.Topic = b.topic + ".made"
	made := b.publisher(Config{Transactions: of, CreateTopics: true})
	t.Cleanup(func() { b.deleteTopic(of.Topic) })
	mustClaim(t, made, 0)
	if err := made.Check(t.Context()); err != nil {
		t.Errorf("Check of a topic that was made: %v", err)
	}
	want(t, publish(t, t.Context(), made, message(b.topic, "k"))[0], taken)
}

// Somebody fences the producer each time, as the coordinator does when a transaction takes longer than its timeout.
func driveAborted(t *testing.T) {
	b := newBench(t, commonURL(t), 1)
	p := b.transactional(b.transactions())
	fencer := b.publisher(Config{Transactions: p.cfg.Transactions})
	p.mu.Lock()
	p.tx.at = func(step string) {
		if step == "commit" {
			if _, _, err := fencer.initProducer(context.Background(), p.tx.id); err != nil {
				t.Error(err)
			}
		}
	}
	p.mu.Unlock()
	m := message(b.topic, "k")
	want(t, publish(t, t.Context(), p, m)[0], aborted)
	p.mu.Lock()
	p.tx.at = func(string) {}
	p.mu.Unlock()
	want(t, publish(t, t.Context(), p, m)[0], taken)
	if parts, err := b.records(b.context(), 1); err != nil || len(parts[0]) != 1 {
		t.Errorf("%d records are visible (%v), want one", len(parts[0]), err)
	}
}

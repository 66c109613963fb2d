package kafka

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
)

// sleeper lets a publisher stand still at a step, once, as a process does that was stopped there.
type sleeper struct {
	asleep, awake chan struct{}
}

func sleepAt(p *Publisher, step string) *sleeper {
	s := &sleeper{asleep: make(chan struct{}), awake: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	slept := false
	p.tx.at = func(now string) {
		if now == step && !slept {
			slept = true
			close(s.asleep)
			<-s.awake
		}
	}
	return s
}

// visible are the ids that readers of what is committed see, in order.
func (b *bench) visible(n int) (ids []string) {
	b.tb.Helper()
	parts, err := b.records(b.context(), n)
	if err != nil {
		b.tb.Fatal(err)
	}
	for _, r := range parts[0] {
		ids = append(ids, arrived(r).Value("onward-id"))
	}
	return ids
}

func idsOf(batch []broker.Envelope) (ids []string) {
	for _, m := range batch {
		ids = append(ids, m.ID.String())
	}
	return ids
}

// keyed makes messages of one key.
func keyed(n int, topic string) (batch []broker.Envelope) {
	for range n {
		batch = append(batch, message(topic, "k"))
	}
	return batch
}

// An owner that stands still with a transaction on its way, until another one has its partition: what it had sent is not seen, and
// what the other one sends is, once.
func TestAZombieShowsNothing(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"send", "commit"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, commonURL(t), 1)
			of, batch := b.transactions(), keyed(30, b.topic)
			zombie := b.publisher(Config{Transactions: of, AckTimeout: longWait})
			mustClaim(t, zombie, 0)
			for _, r := range publish(t, t.Context(), zombie, batch[:10]...) {
				want(t, r, taken)
			}
			s := sleepAt(zombie, step)
			answers := make(chan broker.Result, 10)
			zombie.Publish(t.Context(), batch[10:20], func(_ int, r broker.Result) { answers <- r })
			<-s.asleep
			owner := b.transactional(of) // the lease is over, and this one has it
			for i, r := range publish(t, t.Context(), owner, batch...) {
				want(t, r, []situation{alreadyThere, taken, taken}[i/10])
			}
			close(s.awake)
			for range 10 {
				want(t, <-answers, unclaimed)
			}
			for _, r := range publish(t, t.Context(), zombie, batch[10:]...) {
				want(t, r, unclaimed)
			}
			last := message(b.topic, "k")
			want(t, publish(t, t.Context(), owner, last)[0], taken)
			if got := b.visible(31); !slices.Equal(got, append(idsOf(batch), last.ID.String())) {
				t.Errorf("%d messages are seen, want 31, once and in order", len(got))
			}
		})
	}
}

// An owner that is killed when the commit was asked for, or a reader of its answer that never gets it: the next owner knows.
func TestACommitThatNobodyHeardOfCounts(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 1)
	of, batch := b.transactions(), keyed(20, b.topic)
	first := b.publisher(Config{Transactions: of, AckTimeout: longWait})
	mustClaim(t, first, 0)
	s := sleepAt(first, "committed")
	answers := make(chan broker.Result, 10)
	first.Publish(t.Context(), batch[:10], func(_ int, r broker.Result) { answers <- r })
	<-s.asleep
	owner := b.transactional(of)
	for i, r := range publish(t, t.Context(), owner, batch...) {
		want(t, r, []situation{alreadyThere, taken}[i/10])
	}
	close(s.awake)
	for range 10 {
		want(t, <-answers, taken)
	}
	if got := b.visible(20); !slices.Equal(got, idsOf(batch)) {
		t.Errorf("%d messages are seen, want 20, once and in order", len(got))
	}
}

// A claim that comes too late, of a relay that stood still before it, or within: it takes the partition from its owner, who claims
// it again. Neither repeats anything.
func TestALateClaimRepeatsNothing(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"register", "fence", "take over"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, commonURL(t), 1)
			of, batch := b.transactions(), keyed(40, b.topic)
			before := b.transactional(of)
			for _, r := range publish(t, t.Context(), before, batch[:10]...) {
				want(t, r, taken)
			}
			late := b.publisher(Config{Transactions: of})
			s := sleepAt(late, step)
			claimed := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), longWait)
			defer cancel()
			go func() { claimed <- late.Claim(ctx, []int{0}) }()
			<-s.asleep
			owner := b.transactional(of)
			for i, r := range publish(t, t.Context(), owner, batch[:20]...) {
				want(t, r, []situation{alreadyThere, taken}[i/10])
			}
			close(s.awake)
			if err := <-claimed; err != nil { // then it asks the database, and learns that it has nothing
				t.Fatal(err)
			}
			want(t, publish(t, t.Context(), owner, batch[20])[0], unclaimed)
			mustClaim(t, owner, 0)
			for i, r := range publish(t, t.Context(), owner, batch...) {
				want(t, r, []situation{alreadyThere, alreadyThere, taken, taken}[i/10])
			}
			third := b.transactional(of) // and who comes next finds all of it
			for _, r := range publish(t, t.Context(), third, batch...) {
				want(t, r, alreadyThere)
			}
			if got := b.visible(40); !slices.Equal(got, idsOf(batch)) {
				t.Errorf("%d messages are seen, want 40, once and in order", len(got))
			}
		})
	}
}

// A relay that dies with a transaction open does not keep another one from claiming a partition that it never had.
func TestAClaimDoesNotWaitForForeignTransactions(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 1)
	of := b.transactions()
	of.Timeout = time.Minute
	dead := b.publisher(Config{Transactions: of})
	mustClaim(t, dead, 1)
	s := sleepAt(dead, "commit")
	defer close(s.awake)
	m := message(b.topic, "other")
	m.Partition = 1
	dead.Publish(t.Context(), []broker.Envelope{m}, func(int, broker.Result) {})
	<-s.asleep
	began := time.Now()
	first := b.transactional(of)
	batch := keyed(10, b.topic)
	for _, r := range publish(t, t.Context(), first, batch...) {
		want(t, r, taken)
	}
	for _, r := range publish(t, t.Context(), b.transactional(of), batch...) { // it is behind what is open, and read all the same
		want(t, r, alreadyThere)
	}
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("it took %s", took)
	}
}

// An owner that is fenced by a claim that is not finished yet: it begins anew, finds itself revoked, and publishes nothing until
// the claim is. Nor does it if the claimer dies there, and another one comes, which fences both.
func TestAFencedOwnerFindsItselfRevoked(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 1)
	of, batch := b.transactions(), keyed(30, b.topic)
	first := b.transactional(of)
	for _, r := range publish(t, t.Context(), first, batch[:10]...) {
		want(t, r, taken)
	}
	claimer := b.publisher(Config{Transactions: of})
	s := sleepAt(claimer, "take over") // the first one is fenced by now
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	claimed := make(chan error, 1)
	go func() { claimed <- claimer.Claim(ctx, []int{0}) }()
	<-s.asleep
	for _, r := range publish(t, t.Context(), first, batch[10:20]...) {
		want(t, r, unclaimed)
	}
	third := b.transactional(of)
	cancel() // nobody waits for the second one any more
	close(s.awake)
	if err := <-claimed; err == nil {
		t.Error("a claim was made that had ended")
	}
	for i, r := range publish(t, t.Context(), third, batch...) {
		want(t, r, []situation{alreadyThere, taken, taken}[i/10])
	}
	if got := b.visible(30); !slices.Equal(got, idsOf(batch)) {
		t.Errorf("%d messages are seen, want 30, once and in order", len(got))
	}
}

package kafka

import (
	"math/rand/v2"
	"testing"

	"github.com/onwardhq/onward/broker"
)

// rounds is how often a connection is broken.
const rounds = 8

// A connection that breaks before a request reaches the broker, or before its answer comes back: the same batch is sent
// again, and the broker stores it once.
func TestALostAnswerStoresNothingTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 1).behindProxy()
	p := b.publisher(Config{})
	want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], taken)
	for range rounds {
		b.proxy.deafen()
		answer := make(chan broker.Result, 1)
		before := b.count()
		p.Publish(t.Context(), []broker.Envelope{message(b.topic, "k")}, func(_ int, r broker.Result) { answer <- r })
		until(t, "the broker has stored it", func() bool { return b.count() > before })
		b.proxy.cut()
		want(t, <-answer, taken)
	}
	if n := b.count(); n != rounds+1 {
		t.Errorf("the topic has %d records, want %d", n, rounds+1)
	}
}

func TestABrokenConnectionBeforeTheSendLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 1).behindProxy()
	p := b.publisher(Config{})
	want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], taken)
	for range rounds {
		b.proxy.freeze() // it goes no further than the proxy
		answer := make(chan broker.Result, 1)
		p.Publish(t.Context(), []broker.Envelope{message(b.topic, "k")}, func(_ int, r broker.Result) { answer <- r })
		b.proxy.cut()
		b.proxy.thaw()
		want(t, <-answer, taken)
	}
	if n := b.count(); n != rounds+1 {
		t.Errorf("the topic has %d records, want %d", n, rounds+1)
	}
}

// Twenty messages of a key on their way while connections break, answers are lost and messages are refused: all arrive, first
// copies in order.
func TestThePipelineKeepsOrderThroughFailures(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 3).behindProxy()
	l := b.load(b.publisher(Config{}), 20)
	random := rand.New(rand.NewPCG(7, 11))
	for range 30 {
		l.await(int64(1 + random.IntN(300)))
		switch random.IntN(4) {
		case 0:
			b.proxy.cut()
		case 1:
			b.proxy.deafen()
			l.p.Publish(t.Context(), messages(1, b.topic), func(int, broker.Result) {})
			b.proxy.cut()
		case 2:
			b.proxy.stop()
			b.proxy.start()
		case 3: // smaller than what some batches have become by now
			b.set("max.message.bytes", []string{"1000", "2000", "1048588"}[random.IntN(3)])
		}
	}
	b.set("max.message.bytes", "1048588")
	twice := l.end()
	t.Logf("%d published, %d answers that were none, %d came twice", l.published.Load(), l.failed.Load(), twice)
}

// The keys of a topic that gets more partitions move to other ones, in order.
func TestPartitionsThatAreAddedAreUsed(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 1)
	p := b.publisher(Config{})
	p.topicAge = 0 // asked for again at each call
	l := b.load(p, 20)
	l.await(500)
	b.addPartitions(7)
	until(t, "another partition is used", func() bool {
		ends, err := b.ends(t.Context())
		return err == nil && len(ends) == 7 && ends[1]+ends[2]+ends[3]+ends[4]+ends[5]+ends[6] > 0
	})
	l.await(500)
	l.over.Store(true)
	l.group.Wait()
	parts, err := b.records(b.context(), int(l.published.Load()))
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, rs := range parts {
		last := map[string]int64{}
		for _, r := range rs {
			total++
			key, seq := string(r.Key), header(r, "onward-seq")
			if seq <= last[key] {
				t.Fatalf("%s: %d comes behind %d", key, seq, last[key])
			}
			last[key] = seq
		}
	}
	if total != int(l.published.Load()) {
		t.Errorf("%d records, %d published", total, l.published.Load())
	}
}

// A key's messages in two topics: the second waits until the first is stored, and fails with it.
func TestAKeyKeepsItsOrderAcrossTopics(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 1)
	other := b.topic + ".other"
	b.makeTopic(other, 1)
	p := b.publisher(Config{})
	publish(t, t.Context(), p, message(b.topic, "x"), message(other, "y")) // both are known
	for range 20 {
		rs := publish(t, t.Context(), p, message(b.topic, "k"), message(other, "k"), message(b.topic, "k"))
		for _, r := range rs {
			want(t, r, taken)
		}
	}
	large := message(b.topic, "k")
	large.Payload = make([]byte, 2000)
	b.lower(b.publisher(Config{}), 1500) // the broker refuses it, and not the publisher, which has not heard of it
	before := b.count()
	rs := publish(t, t.Context(), p, message(other, "k"), large, message(other, "k"), message(other, "free"))
	want(t, rs[0], taken)
	want(t, rs[1], tooLargeByNow)
	want(t, rs[2], behind)
	want(t, rs[3], taken)
	if n := b.count(); n != before {
		t.Errorf("the topic has %d records, want %d", n, before)
	}
	o := &bench{tb: t, url: b.url, topic: other, admin: b.admin}
	if n := o.count(); n != 1+20+2 {
		t.Errorf("the other topic has %d records, want 23", n)
	}
}

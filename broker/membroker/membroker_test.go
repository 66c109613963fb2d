package membroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// envelopes makes messages with these keys, numbered from 1 in Seq.
func envelopes(keys ...string) []broker.Envelope {
	batch := make([]broker.Envelope, len(keys))
	for i, key := range keys {
		batch[i] = broker.Envelope{Record: &outbox.Record{
			Message: outbox.Message{ID: outbox.IDFrom("membroker", key+strconv.Itoa(i)), Topic: "t", Key: key, Type: "T", Payload: []byte{byte(i)}},
			Seq:     int64(i) + 1,
		}}
	}
	return batch
}

// publish returns the answers of a batch; an index without an answer has the zero Result.
func publish(ctx context.Context, p *Publisher, batch []broker.Envelope) []broker.Result {
	results := make([]broker.Result, len(batch))
	p.Publish(ctx, batch, func(i int, r broker.Result) { results[i] = r })
	return results
}

func outcomes(rs []broker.Result) (words []string) {
	for _, r := range rs {
		words = append(words, r.Outcome.String())
	}
	return words
}

func seqs(ms []Message) (ns []int64) {
	for _, m := range ms {
		ns = append(ns, m.Seq)
	}
	return ns
}

func wantEqual[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestEachOutcomeIsAnsweredAndKeepsTheMessageOut(t *testing.T) {
	t.Parallel()
	for o := broker.Retry; o <= broker.Uncertain; o++ {
		b := New(Config{Faults: []Rule{Nth(2, Fault{Outcome: o, After: time.Second})}})
		rs := publish(t.Context(), b.Publisher(), envelopes("a", "b", "c"))
		wantEqual(t, "outcomes", outcomes(rs), []string{"accepted", o.String(), "accepted"})
		wantEqual(t, "stored", seqs(b.Messages("t")), []int64{1, 3})
		if rs[1].Code == "" || rs[1].Err == nil || rs[1].After != time.Second {
			t.Errorf("%s: incomplete answer %+v", o, rs[1])
		}
	}
}

func TestLostAcknowledgementIsStoredAndItsRepeatIsADuplicateWithinTheWindow(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	b := New(Config{Dedup: time.Minute, Positions: true, Now: func() time.Time { return now }, Faults: []Rule{Nth(1, LostAck())}})
	p, batch := b.Publisher(), envelopes("a")
	first := publish(t.Context(), p, batch)
	now = now.Add(time.Minute - 1)
	second := publish(t.Context(), p, batch)
	now = now.Add(1)
	third := publish(t.Context(), p, batch)
	wantEqual(t, "outcomes", outcomes([]broker.Result{first[0], second[0], third[0]}), []string{"uncertain", "duplicate", "accepted"})
	wantEqual(t, "positions", []string{second[0].Position, third[0].Position}, []string{"1", "2"})
	wantEqual(t, "stored", seqs(b.All()), []int64{1, 1})
}

func TestLateDeliveryArrivesWhenItIsToldTo(t *testing.T) {
	t.Parallel()
	b := New(Config{Faults: []Rule{Nth(1, Fault{Outcome: broker.Uncertain, Delivery: Late})}})
	publish(t.Context(), b.Publisher(), envelopes("a", "b"))
	wantEqual(t, "before", seqs(b.All()), []int64{2})
	if n := b.DeliverLate(); n != 1 {
		t.Errorf("delivered %d, want 1", n)
	}
	wantEqual(t, "after", seqs(b.All()), []int64{2, 1})
	if n := b.DeliverLate(); n != 0 {
		t.Errorf("delivered %d again", n)
	}
}

func TestLateDeliveryOfARepeatedMessageIsDroppedWithinTheWindow(t *testing.T) {
	t.Parallel()
	b := New(Config{Dedup: time.Hour, Faults: []Rule{Nth(1, Fault{Outcome: broker.Uncertain, Delivery: Late})}})
	p, batch := b.Publisher(), envelopes("a")
	publish(t.Context(), p, batch)
	publish(t.Context(), p, batch)
	if n := b.DeliverLate(); n != 0 || b.Len() != 1 {
		t.Errorf("delivered %d late, stored %d: want 0 and 1", n, b.Len())
	}
}

func TestStallIsNeverAnsweredAndKeepsCloseWaiting(t *testing.T) {
	t.Parallel()
	b := New(Config{Faults: []Rule{Nth(1, Fault{Stall: true, Delivery: Stored})}})
	p := b.Publisher()
	rs := publish(t.Context(), p, envelopes("a", "b"))
	wantEqual(t, "outcomes", outcomes(rs), []string{"unknown", "accepted"})
	wantEqual(t, "stored", seqs(b.All()), []int64{1, 2})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close returned %v while a message has no answer", err)
	}
}

func TestPanicLeavesTheRestOfTheBatchUnsent(t *testing.T) {
	t.Parallel()
	b := New(Config{Faults: []Rule{Nth(2, Fault{Panic: true})}})
	p, answered := b.Publisher(), 0
	func() {
		defer func() {
			if recover() == nil {
				t.Error("Publish did not panic")
			}
		}()
		p.Publish(t.Context(), envelopes("a", "b", "c"), func(int, broker.Result) { answered++ })
	}()
	wantEqual(t, "stored", seqs(b.All()), []int64{1})
	if answered != 1 {
		t.Errorf("%d answers, want 1", answered)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestUnavailableAndThrottleHoldForEveryMessageUntilTheyEnd(t *testing.T) {
	t.Parallel()
	b := New(Config{})
	p := b.Publisher()
	b.SetUnavailable(true)
	if err := p.Check(t.Context()); outbox.CodeOf(err) != broker.CodeUnavailable {
		t.Errorf("Check: %v", err)
	}
	wantEqual(t, "unavailable", outcomes(publish(t.Context(), p, envelopes("a", "b"))), []string{"unavailable", "unavailable"})
	b.SetUnavailable(false)
	if err := p.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
	b.SetThrottle(3 * time.Second)
	if rs := publish(t.Context(), p, envelopes("a")); rs[0].Outcome != broker.Throttled || rs[0].After != 3*time.Second {
		t.Errorf("throttled: %+v", rs[0])
	}
	b.SetThrottle(0)
	wantEqual(t, "after", outcomes(publish(t.Context(), p, envelopes("a"))), []string{"accepted"})
}

func TestPipelineFailsWhatIsBehindAFailureOfItsKey(t *testing.T) {
	t.Parallel()
	b := New(Config{Pipeline: true, Faults: []Rule{Nth(2, Fault{Outcome: broker.Rejected})}})
	p, batch := b.Publisher(), envelopes("a", "a", "a", "b", "a")
	rs := publish(t.Context(), p, batch)
	wantEqual(t, "outcomes", outcomes(rs), []string{"accepted", "rejected", "retry", "accepted", "retry"})
	wantEqual(t, "stored", seqs(b.All()), []int64{1, 4})
	wantEqual(t, "again", outcomes(publish(t.Context(), p, []broker.Envelope{batch[1], batch[2], batch[4]})), []string{"accepted", "accepted", "accepted"})
}

func TestPipelineKeepsFailingUntilTheFailureIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{Pipeline: true, Latency: time.Second, Faults: []Rule{Nth(1, Fault{Outcome: broker.Retry})}})
		p, batch := b.Publisher(), envelopes("a", "a", "a")
		results := make([]broker.Result, 3)
		send := func(i int) {
			p.Publish(t.Context(), batch[i:i+1], func(_ int, r broker.Result) { results[i] = r })
		}
		send(0)
		time.Sleep(time.Second / 2) //nolint:forbidigo // the clock of synctest
		send(1)
		time.Sleep(time.Second) //nolint:forbidigo // the clock of synctest
		synctest.Wait()
		send(2)                     // the failure was answered: its sender chose to go on
		time.Sleep(2 * time.Second) //nolint:forbidigo // the clock of synctest
		synctest.Wait()
		wantEqual(t, "outcomes", outcomes(results), []string{"retry", "retry", "accepted"})
		wantEqual(t, "stored", seqs(b.All()), []int64{3})
	})
}

// Whoever drives the broker chooses when each answer comes, and until then what is behind a failure fails.
func TestAnswersComeWhenTheyAreDelivered(t *testing.T) {
	t.Parallel()
	var answers []func()
	b := New(Config{Pipeline: true, Deliver: func(f func()) { answers = append(answers, f) }, Faults: []Rule{Nth(1, Fault{Outcome: broker.Retry})}})
	p, batch := b.Publisher(), envelopes("a", "a", "a")
	results := make([]broker.Result, 3)
	done := func(i int, r broker.Result) { results[i] = r }
	p.Publish(t.Context(), batch[:2], done)
	if len(answers) != 2 || results[0].Outcome != 0 {
		t.Fatalf("%d answers to deliver, %+v delivered", len(answers), results)
	}
	answers[1]()
	answers[0]()
	p.Publish(t.Context(), batch[2:], func(_ int, r broker.Result) { results[2] = r })
	answers[2]()
	wantEqual(t, "outcomes", outcomes(results), []string{"retry", "retry", "accepted"})
}

// Compare: a second copy is never stored, however long ago the first one came, and a late copy finds its place taken.
func TestCompareStoresAMessageBehindTheOneItKnew(t *testing.T) {
	t.Parallel()
	late := Fault{Outcome: broker.Uncertain, Delivery: Late}
	now := time.Unix(0, 0)
	b := New(Config{Compare: true, Now: func() time.Time { return now }, Faults: []Rule{AtMost(1, Nth(1, late))}})
	p, batch := b.Publisher(), envelopes("a", "a")
	wantEqual(t, "first try", outcomes(publish(t.Context(), p, batch[:1])), []string{"uncertain"})
	wantEqual(t, "others", outcomes(publish(t.Context(), p, batch)), []string{"accepted", "accepted"})
	now = now.Add(1000 * time.Hour)
	wantEqual(t, "again", outcomes(publish(t.Context(), p, batch)), []string{"duplicate", "duplicate"})
	if n := b.DeliverLate(); n != 0 || b.Len() != 2 {
		t.Errorf("%d late copies were stored, %d messages in all", n, b.Len())
	}
}

// Fence: what an older owner of a partition sends is refused once a newer one has published, also what was on its way.
func TestFenceRefusesAnOlderOwner(t *testing.T) {
	t.Parallel()
	b := New(Config{Fence: true, Faults: []Rule{Nth(2, Fault{Outcome: broker.Uncertain, Delivery: Late})}})
	p, batch := b.Publisher(), envelopes("a", "b", "c", "d")
	for i := range batch {
		batch[i].Epoch = []int64{1, 1, 2, 1}[i]
	}
	wantEqual(t, "outcomes", outcomes(publish(t.Context(), p, batch)), []string{"accepted", "uncertain", "accepted", "unavailable"})
	if n := b.DeliverLate(); n != 0 {
		t.Errorf("%d late copies of the older owner were stored", n)
	}
	wantEqual(t, "stored", seqs(b.All()), []int64{1, 3})
}

func TestWithoutPipelineALaterMessageOfAFailedKeyArrives(t *testing.T) {
	t.Parallel()
	b := New(Config{Faults: []Rule{Nth(1, Fault{Outcome: broker.Retry})}})
	wantEqual(t, "outcomes", outcomes(publish(t.Context(), b.Publisher(), envelopes("a", "a"))), []string{"retry", "accepted"})
}

func TestMaxBytesIsExact(t *testing.T) {
	t.Parallel()
	b := New(Config{MaxBytes: 3})
	batch := envelopes("a", "b")
	batch[0].Payload, batch[1].Payload = []byte("abc"), []byte("abcd")
	rs := publish(t.Context(), b.Publisher(), batch)
	wantEqual(t, "outcomes", outcomes(rs), []string{"accepted", "rejected"})
	if rs[1].Code != broker.CodeTooLarge {
		t.Errorf("code %s", rs[1].Code)
	}
}

func TestLatencyDelaysAnswersAndAContextCutsThemShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{Latency: time.Second})
		p := b.Publisher()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second/2)
		defer cancel()
		start, answers := time.Now(), make(chan string, 2)
		say := func(_ int, r broker.Result) { answers <- fmt.Sprintf("%s after %s", r.Outcome, time.Since(start)) }
		p.Publish(ctx, envelopes("a"), say)
		if len(answers) != 0 || b.Len() != 1 {
			t.Error("the answer came at once, or the message did not")
		}
		time.Sleep(time.Second) //nolint:forbidigo // the clock of synctest
		p.Publish(ctx, envelopes("b"), say)
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		wantEqual(t, "answers", []string{<-answers, <-answers}, []string{"accepted after 1s", "uncertain after 1.5s"})
		wantEqual(t, "after Close", outcomes(publish(t.Context(), p, nil)), nil)
	})
}

func TestAClosedPublisherAndAnEndedContextSendNothing(t *testing.T) {
	t.Parallel()
	b := New(Config{})
	p := b.Publisher()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantEqual(t, "ended", outcomes(publish(ended, p, envelopes("a"))), []string{"unavailable"})
	if err := p.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	wantEqual(t, "closed", outcomes(publish(t.Context(), p, envelopes("a"))), []string{"unavailable"})
	if b.Len() != 0 {
		t.Errorf("%d stored", b.Len())
	}
}

func TestChanceIsRepeatedExactlyByItsSeed(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) []string {
		b := New(Config{Faults: []Rule{Chance(seed, 0.3, LostAck())}})
		return outcomes(publish(t.Context(), b.Publisher(), envelopes(slices.Repeat([]string{"a"}, 200)...)))
	}
	wantEqual(t, "second run", run(7), run(7))
	if slices.Equal(run(7), run(8)) {
		t.Error("two seeds gave the same faults")
	}
	lost := 0
	for _, o := range run(7) {
		if o == "uncertain" {
			lost++
		}
	}
	if lost < 40 || lost > 80 {
		t.Errorf("%d of 200 failed, want about 60", lost)
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	retry := Fault{Outcome: broker.Retry}
	for name, c := range map[string]struct {
		rules []Rule
		want  []string
	}{
		"every":        {[]Rule{Every(2, retry)}, []string{"accepted", "retry", "accepted", "retry"}},
		"when":         {[]Rule{When(func(e broker.Envelope) bool { return e.Key == "c" }, retry)}, []string{"accepted", "accepted", "retry", "accepted"}},
		"at most":      {[]Rule{AtMost(1, Every(2, retry))}, []string{"accepted", "retry", "accepted", "accepted"}},
		"first counts": {[]Rule{Nth(2, retry), Nth(2, Fault{Outcome: broker.Rejected})}, []string{"accepted", "retry", "accepted", "accepted"}},
	} {
		b := New(Config{Faults: c.rules})
		wantEqual(t, name, outcomes(publish(t.Context(), b.Publisher(), envelopes("a", "b", "c", "d"))), c.want)
	}
	b := New(Config{Faults: []Rule{Nth(1, retry)}})
	b.SetFaults()
	wantEqual(t, "replaced", outcomes(publish(t.Context(), b.Publisher(), envelopes("a"))), []string{"accepted"})
}

func TestReadWaitsForWhatArrivesNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{})
		p, batch := b.Publisher(), envelopes("a", "b")
		publish(t.Context(), p, batch[:1])
		time.AfterFunc(time.Second, func() { publish(t.Context(), p, batch[1:]) })
		ms, err := b.Read(t.Context(), "t", 1)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "read", seqs(ms), []int64{2})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Read(ctx, "t", 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Read: %v", err)
		}
	})
}

func TestAMessageIsKeptAsACopy(t *testing.T) {
	t.Parallel()
	b := New(Config{})
	batch := envelopes("a")
	batch[0].Payload = []byte("before")
	publish(t.Context(), b.Publisher(), batch)
	copy(batch[0].Payload, "after!")
	m := b.All()[0]
	if string(m.Payload) != "before" || !slices.Contains(m.Headers, Header{"onward-key", "a"}) {
		t.Errorf("kept %q with %v", m.Payload, m.Headers)
	}
}

func BenchmarkPublish(b *testing.B) {
	batch := envelopes(slices.Repeat([]string{"a"}, 100)...)
	p := New(Config{IDsOnly: true}).Publisher()
	b.ReportAllocs()
	for b.Loop() {
		p.Publish(b.Context(), batch, func(int, broker.Result) {})
	}
	b.ReportMetric(float64(b.N*len(batch))/b.Elapsed().Seconds(), "msg/s")
}

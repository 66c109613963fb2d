package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/onwardhq/onward/relay/core"
)

// knobs are drawn for each run.
type knobs struct {
	partitions, relays, keys   int
	coarse                     bool
	pipeline, positions        bool
	compare, fence             bool
	dedup                      time.Duration
	latency                    time.Duration
	lease, heartbeat           time.Duration
	page                       int
	rules                      core.Rules
	hints                      bool
	split                      bool // each message of a batch travels alone
	skips                      float64
	writeEvery                 time.Duration
	inTx                       int
	long                       float64 // of transactions that are open for long
	rollback, lostCommit       float64
	serialized                 float64 // of messages with a key that wait for the transaction that has it
	keyless, scheduled, poison float64
	lookEvery                  time.Duration // people
	disasterEvery              time.Duration
	retention                  time.Duration // negative: nobody looks after it
	message                    struct{ retry, unavailable, throttled, uncertain, late, stall float64 }
	call                       struct{ fails, lost float64 }
}

// oneOf draws one.
func oneOf[T any](w *world, all ...T) T { return all[w.rng.IntN(len(all))] }

// about draws between a and b, each order of magnitude alike.
func (w *world) about(a, b float64) float64 {
	return a * math.Exp(w.rng.Float64()*math.Log(b/a))
}

func (w *world) aboutTime(a, b time.Duration) time.Duration {
	return time.Duration(w.about(float64(a), float64(b)))
}

// rarely is 0, or a small probability.
func (w *world) rarely(most float64) float64 {
	if w.rng.IntN(2) == 0 {
		return 0
	}
	return w.about(most/100, most)
}

func (w *world) draw() knobs {
	k := knobs{
		partitions: oneOf(w, 1, 2, 4, 8, 16), relays: 1 + w.rng.IntN(4), keys: int(w.about(1, 60)),
		coarse: w.rng.IntN(2) == 0, pipeline: w.rng.IntN(3) == 0, positions: w.rng.IntN(2) == 0,
		compare: w.rng.IntN(5) == 0, fence: w.rng.IntN(5) == 0,
		dedup:   oneOf(w, 0, 0, time.Second, 2*time.Minute),
		latency: w.aboutTime(100*time.Microsecond, 20*time.Millisecond),
		lease:   w.aboutTime(time.Second, 15*time.Second),
		page:    int(w.about(1, 300)), hints: w.rng.IntN(2) == 0, split: w.rng.IntN(2) == 0, skips: oneOf(w, 0, 0, 0.3, 1),
		writeEvery: w.aboutTime(2*time.Millisecond, 100*time.Millisecond), inTx: int(w.about(1, 8)),
		long: w.rarely(0.1), rollback: w.rarely(0.3), lostCommit: w.rarely(0.1), serialized: oneOf(w, 1, 0.9, 0.5),
		keyless: oneOf(w, 0, 0.1, 0.5), scheduled: w.rarely(0.3), poison: w.rarely(0.05),
		lookEvery: w.aboutTime(50*time.Millisecond, 2*time.Second), disasterEvery: w.aboutTime(100*time.Millisecond, 20*time.Second),
		retention: oneOf(w, -1, 0, time.Second),
	}
	k.heartbeat = k.lease / time.Duration(3+w.rng.IntN(4))
	k.message.retry, k.message.unavailable, k.message.throttled = w.rarely(0.2), w.rarely(0.05), w.rarely(0.02)
	k.message.uncertain, k.message.late, k.message.stall = w.rarely(0.1), w.rarely(0.05), w.rarely(0.02)
	k.call.fails, k.call.lost = w.rarely(0.05), w.rarely(0.02)
	k.rules = core.Rules{
		Messages: int(w.about(1, 200)), Bytes: int(w.about(50, 20_000)), Page: k.page, PageBytes: int(w.about(50, 20_000)),
		SettleEvery: w.aboutTime(time.Millisecond, 50*time.Millisecond), SettleCount: int(w.about(1, 200)),
		PublishTimeout: w.aboutTime(200*time.Millisecond, 5*time.Second),
		PollMin:        w.aboutTime(2*time.Millisecond, 20*time.Millisecond), PollMax: 100 * time.Millisecond,
		Hints: k.hints, LeaseMargin: k.lease / 10, Pipeline: k.pipeline, Positions: k.positions,
		Retry: core.Retry{
			Fixed: w.rng.IntN(4) == 0, First: w.aboutTime(10*time.Millisecond, time.Second), Max: w.aboutTime(time.Second, 5*time.Second),
			Attempts: oneOf(w, 1, 2, 3, 5, 10, -1),
		},
		Breaker: core.Breaker{Failures: 1 + w.rng.IntN(5), First: w.aboutTime(20*time.Millisecond, time.Second), Max: 2 * time.Second},
		Topic:   func(topic string) core.Topic { return core.Topic{Skips: topic == topicSkips} },
	}
	return k
}

const (
	topicBlocks = "blocks"
	topicSkips  = "skips"
)

// String is the knobs in a line.
func (k knobs) String() string {
	return fmt.Sprintf("%d relays, %d partitions, %d keys, lease %s, heartbeat %s, window %d messages %d bytes, page %d, attempts %d, timeout %s, "+
		"coarse %v, pipeline %v, compare %v, fence %v, dedup %s, skips %g, latency %s, a transaction each %s, a disaster each %s, retention %s, message %+v, call %+v",
		k.relays, k.partitions, k.keys, k.lease, k.heartbeat, k.rules.Messages, k.rules.Bytes, k.page, k.rules.Retry.Attempts, k.rules.PublishTimeout,
		k.coarse, k.pipeline, k.compare, k.fence, k.dedup, k.skips, k.latency, k.writeEvery, k.disasterEvery, k.retention, k.message, k.call)
}

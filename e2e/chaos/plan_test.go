package chaos

import (
	"reflect"
	"testing"
	"time"
)

func TestASeedHasOnePlan(t *testing.T) {
	t.Parallel()
	s := Scene{Store: Postgres, Broker: JetStream, Lease: 2 * time.Second, DiskFull: true}
	a, b := Plan(1, time.Minute, s), Plan(1, time.Minute, s)
	if !reflect.DeepEqual(a, b) {
		t.Error("two plans of one seed differ")
	}
	if reflect.DeepEqual(a, Plan(2, time.Minute, s)) {
		t.Error("plans of two seeds are alike")
	}
}

// A plan has each fault that its scene can have and no other, in the order of time, and leaves everything sound at its end.
func TestPlansHaveEveryFaultThatTheSceneCanHave(t *testing.T) {
	t.Parallel()
	for _, s := range []Scene{
		{Store: Postgres, Broker: JetStream, Lease: 2 * time.Second, DiskFull: true},
		{Store: Postgres, Broker: JSONLines, Lease: 2 * time.Second},
		{Store: SQLite, Broker: JetStreamCompare, Lease: 2 * time.Second, DiskFull: true},
		{Store: SQLite, Broker: JSONLines, Lease: 2 * time.Second},
		{Store: Postgres, Broker: Kafka, Lease: 2 * time.Second, DiskFull: true},
		{Store: Postgres, Broker: RabbitMQ, Lease: 2 * time.Second, DiskFull: true},
		{Store: Postgres, Broker: Redis, Lease: 2 * time.Second, DiskFull: true},
		{Store: Postgres, Broker: Webhook, Lease: 2 * time.Second, DiskFull: true},
		{Store: Postgres, Broker: ServiceBus, Lease: 2 * time.Second, DiskFull: true},
	} {
		const d = 2 * time.Minute
		has := map[Kind]bool{}
		last := time.Duration(0)
		for _, step := range Plan(3, d, s) {
			has[step.Kind] = true
			if step.At < last || step.At+step.For > d {
				t.Errorf("%v: a step at %v for %v, after one at %v", s, step.At, step.For, last)
			}
			if step.Kind == RelayStop && (step.For < s.Lease/10 && step.At+step.For < d || step.For > 3*s.Lease) {
				t.Errorf("%v: a relay is stopped for %v", s, step.For)
			}
			last = step.At
		}
		for _, lane := range lanes {
			for _, kind := range lane {
				if has[kind] != s.possible(kind) {
					t.Errorf("%v: %s is in the plan: %v", s, kind, has[kind])
				}
			}
		}
	}
}

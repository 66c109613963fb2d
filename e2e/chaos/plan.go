package chaos

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Step is one fault that is going to be tried.
type Step struct {
	At     time.Duration // since the run's start; later where nothing is in flight
	Kind   Kind
	For    time.Duration // how long it lasts
	Amount int           // of what the kind counts: relays, sessions, acts, messages, bytes
	Pick   uint64        // chooses the target among what there is then
	Flip   bool          // one of two ways to do it
}

// Scene is what a plan is made for.
type Scene struct {
	Store, Broker string
	Lease         time.Duration
	DiskFull      bool // disks may be filled
}

// Lanes are faults of which one happens at a time; those of different lanes meet.
var lanes = [][]Kind{
	{RelayKill, RelayStop, RelayScale, RelayKill, RelayStop},
	{LinkLatency, LinkReset, LinkHole, LinkCut, Terminate, DatabaseRestart, DatabaseCrash, DatabaseFull, BrokerRestart, BrokerStop, BrokerFull, BrokerAlarm, BrokerDeny, BrokerRename, LinkHole},
	{WriterKill, LongTransaction, HeldSnapshot, PauseStorm, RequeueStorm, DiscardStorm, PoisonMessages, OversizeMessage, WriterKill},
}

// possible reports whether a scene can have a fault.
func (s *Scene) possible(k Kind) bool {
	server := s.Broker != JSONLines
	switch k {
	case Terminate, DatabaseRestart, DatabaseCrash:
		return s.Store == Postgres
	case DatabaseFull:
		return s.DiskFull
	case BrokerFull:
		// RabbitMQ raises its alarm before, Kafka ends, and the disk of a peer is not the service's.
		return s.DiskFull && s.Broker != RabbitMQ && !isKafka(s.Broker) && s.Broker != ServiceBus
	case BrokerAlarm:
		return s.Broker == RabbitMQ || s.Broker == Redis || s.Broker == Webhook || s.Broker == ServiceBus
	case BrokerStop:
		return s.Broker == ServiceBus
	case BrokerDeny:
		// A channel of RabbitMQ remembers what it may do; users of Kafka would need a log-in, topics of Redis streams of their own.
		return server && s.Broker != RabbitMQ && !isKafka(s.Broker) && s.Broker != Redis
	case BrokerRestart, PoisonMessages:
		return server
	case BrokerRename:
		return !server
	case LinkLatency, LinkReset, LinkHole, LinkCut:
		return s.Store == Postgres || server
	default:
		return true
	}
}

// Plan draws the faults of a run. It is a pure function of its arguments.
func Plan(seed uint64, d time.Duration, s Scene) []Step {
	var all []Step
	for number, kinds := range lanes {
		rng := rand.New(rand.NewPCG(seed, uint64(number)))
		kinds = slices.DeleteFunc(slices.Clone(kinds), func(k Kind) bool { return !s.possible(k) })
		var deck []Kind // each kind comes before one comes again
		for at := 500*time.Millisecond + upTo(rng, time.Second); at < d-time.Second; {
			if len(deck) == 0 {
				deck = slices.Clone(kinds)
				rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			}
			step := s.draw(rng, deck[0], at)
			deck = deck[1:]
			if step.At+step.For > d { // everything is sound again when the time is over
				step.For = d - step.At
			}
			all = append(all, step)
			at += step.For + 100*time.Millisecond + upTo(rng, 900*time.Millisecond)
		}
	}
	slices.SortStableFunc(all, func(a, b Step) int { return int(a.At - b.At) })
	return all
}

func upTo(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

// draw draws one step of a kind.
func (s *Scene) draw(rng *rand.Rand, kind Kind, at time.Duration) Step {
	step := Step{At: at, Kind: kind, Pick: rng.Uint64(), Flip: rng.IntN(2) == 0}
	between := func(low, high time.Duration) time.Duration { return low + upTo(rng, high-low) }
	switch kind {
	case RelayKill:
		step.Amount, step.For = 1+rng.IntN(3), upTo(rng, s.Lease)
	case RelayStop:
		step.Amount, step.For = 1+rng.IntN(2), between(s.Lease/10, 3*s.Lease)
	case RelayScale:
		step.Amount, step.For = []int{1, mostRelays}[rng.IntN(2)], between(time.Second, 3*time.Second)
	case LinkLatency:
		step.Amount, step.For = 20+rng.IntN(200), between(time.Second, 3*time.Second) // milliseconds
	case LinkHole, BrokerStop:
		step.For = between(200*time.Millisecond, 2*s.Lease)
	case LinkCut:
		step.Amount = rng.IntN(5000) // bytes
	case Terminate:
		step.Amount = 1 + rng.IntN(10)
	case DatabaseFull, BrokerFull, BrokerAlarm, BrokerDeny:
		step.For = between(500*time.Millisecond, 2*time.Second)
	case LongTransaction, HeldSnapshot:
		step.Amount, step.For = 1+rng.IntN(20), between(500*time.Millisecond, 4*time.Second)
		if s.Store == SQLite && kind == LongTransaction { // nobody else writes meanwhile
			step.For = between(200*time.Millisecond, 1500*time.Millisecond)
		}
	case PauseStorm, RequeueStorm, DiscardStorm:
		step.Amount, step.For = 5+rng.IntN(20), between(500*time.Millisecond, 2*time.Second)
	case PoisonMessages, OversizeMessage:
		step.Amount = 1 + rng.IntN(5)
	default: // at once
	}
	return step
}

package chaos

import "time"

// Kind is a kind of fault.
type Kind string

// The faults. A link is the connection of one relay, or of the writers, to the database or the broker.
const (
	RelayKill  Kind = "relay-kill"  // kill -9 of relays, which start again within a lease
	RelayStop  Kind = "relay-stop"  // SIGSTOP for 0.1 to 3 leases, SIGCONT
	RelayScale Kind = "relay-scale" // more relays, or SIGTERM of some

	LinkLatency Kind = "link-latency" // everything is late
	LinkReset   Kind = "link-reset"   // every connection of the link is reset
	LinkHole    Kind = "link-hole"    // nothing gets through for a time; then it goes on, or is reset
	LinkCut     Kind = "link-cut"     // every connection of the link ends after some more bytes, in the middle of what is sent

	Terminate       Kind = "database-terminate" // pg_terminate_backend
	DatabaseRestart Kind = "database-restart"   // immediate shutdown, start
	DatabaseCrash   Kind = "database-crash"     // kill -9 of every process of the server, start
	DatabaseFull    Kind = "database-full"      // its disk is full for a time

	BrokerRestart Kind = "broker-restart" // kill -9 or SIGTERM of the server, start
	BrokerStop    Kind = "broker-stop"    // SIGSTOP of the server for a time, SIGCONT
	BrokerFull    Kind = "broker-full"    // its disk is full for a time
	BrokerAlarm   Kind = "broker-alarm"   // it takes no messages for a time, as when its disk or memory is nearly full
	BrokerDeny    Kind = "broker-deny"    // the broker refuses one topic for a time
	BrokerRename  Kind = "broker-rename"  // the file that is written gets another name, as by logrotate

	WriterKill      Kind = "writer-kill"      // kill -9 of a writer while its COMMIT is on its way, or at any moment
	LongTransaction Kind = "long-transaction" // one that has written stays open, and is committed or rolled back
	HeldSnapshot    Kind = "held-snapshot"    // one that reads stays open
	PauseStorm      Kind = "pause-storm"      // topics, keys and the sink are paused and resumed, many times
	RequeueStorm    Kind = "requeue-storm"    // dead letters are requeued, again and again
	DiscardStorm    Kind = "discard-storm"    // dead letters, and parked messages, are discarded
	PoisonMessages  Kind = "poison-messages"  // writers write messages that the broker refuses for good
	OversizeMessage Kind = "oversize-messages"

	// TookOver is read from the relays' logs: a lease ran out, for whatever reason.
	TookOver Kind = "took-over"
)

// Where a link leads is the detail of its faults; their target is who has it: a relay, or the writers.
const (
	toDatabase = "database"
	toBroker   = "broker"

	writersLink = "writers"
)

// Cause is why a message came twice.
type Cause string

// The causes.
const (
	Kill         Cause = "kill"          // the relay died before it had settled
	TakeOver     Cause = "take-over"     // another relay took over what it had in flight
	Database     Cause = "database"      // what was published could not be settled, or nobody knew whether it was
	UncertainAck Cause = "uncertain-ack" // nobody knew whether the broker had it
)

// excuse is why a fault may make a message come twice; empty: it may not. sameOwner: both copies were sent under one epoch, so
// no relay has taken over in between.
func (f *Fault) excuse(sameOwner bool) Cause {
	switch Kind(f.Kind) {
	case RelayKill, TookOver:
		if sameOwner {
			return ""
		}
		if Kind(f.Kind) == RelayKill {
			return Kill
		}
		return TakeOver
	case RelayStop:
		if sameOwner { // its publishes timed out while it stood still
			return UncertainAck
		}
		return TakeOver
	case Terminate, DatabaseRestart, DatabaseCrash, DatabaseFull:
		return Database
	case BrokerRestart, BrokerStop, BrokerFull, BrokerAlarm, BrokerDeny, BrokerRename:
		return UncertainAck
	case LinkLatency, LinkReset, LinkHole, LinkCut:
		switch {
		case f.Target == writersLink: // they have published nothing
		case f.Detail == toDatabase:
			return Database
		case f.Detail == toBroker:
			return UncertainAck
		}
	default:
	}
	return "" // writers, operators and readers of the database repeat nothing, and neither do joining and leaving relays
}

// likeliest chooses among causes, each with how long its fault was over as the copy came: where the owner changed, what changes
// owners comes first; else the nearest.
func likeliest(sameOwner bool, since map[Cause]time.Duration) (likeliest Cause) {
	for _, cause := range []Cause{Kill, TakeOver, Database, UncertainAck} {
		d, is := since[cause]
		if is && (likeliest == "" || sameOwner && d < since[likeliest]) {
			likeliest = cause
		}
	}
	return likeliest
}

package redis

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// situation is what can become of a message; verdicts says what it means for the relay.
type situation int

const (
	taken situation = iota

	templateFailed
	badText
	aboveKnownLimit
	wrongType

	permissionDenied
	refused

	outOfMemory
	readOnly
	diskFailed
	noReplicas
	busy
	loading
	notConnected
	notSent
	closed

	staleOwner
	tooManyPending

	connectionLost
	noAnswer
	contextEnded
	notOnDisk

	situations // how many there are
)

// CodeStaleOwner is the code of a message that the fence refuses: another relay owns the partition since.
const CodeStaleOwner outbox.Code = "onward/stale-owner"

// staleAfter is how long a sink waits whose relay owns a partition no longer; by then it has learnt so from the database.
const staleAfter = time.Second

// verdict is a row of the table in docs/brokers/redis.md, which a test compares with this one.
type verdict struct {
	outcome broker.Outcome
	code    outbox.Code
	seen    string // how the publisher knows
	means   string
}

var verdicts = [situations]verdict{
	taken: {broker.Accepted, "", "the id of the entry", "the stream has it, on disk with `appendfsync always`"},

	templateFailed:  {broker.Rejected, broker.CodeTemplateFailed, "before it is sent", "`topic_template` fails for the message, or gives a name that cannot be sent"},
	badText:         {broker.Rejected, outbox.ErrFieldInvalid.Code, "before it is sent", "`cloudevents-structured`: a text is not valid UTF-8"},
	aboveKnownLimit: {broker.Rejected, broker.CodeTooLarge, "before it is sent", "the payload is larger than the server's `proto-max-bulk-len`"},
	wrongType:       {broker.Rejected, broker.CodeUnroutable, "`WRONGTYPE`", "the key is there and is no stream"},

	permissionDenied: {broker.Retry, broker.CodePermission, "`NOPERM`", "the relay's user may not write to this stream (ACL)"},
	refused:          {broker.Retry, broker.CodeRejected, "any other error", "the server refuses this message, such as behind the last possible id of a stream"},

	outOfMemory:  {broker.Unavailable, broker.CodeUnavailable, "`OOM`", "`maxmemory` is reached, and nothing may be evicted"},
	readOnly:     {broker.Unavailable, broker.CodeUnavailable, "`READONLY`", "the server is a replica, or has become one"},
	diskFailed:   {broker.Unavailable, broker.CodeUnavailable, "`MISCONF`", "the server cannot write its snapshot or append-only file"},
	noReplicas:   {broker.Unavailable, broker.CodeUnavailable, "`NOREPLICAS`", "fewer replicas than `min-replicas-to-write`"},
	busy:         {broker.Unavailable, broker.CodeUnavailable, "`BUSY`", "a script of somebody runs and runs"},
	loading:      {broker.Unavailable, broker.CodeUnavailable, "`LOADING` or `MASTERDOWN` *", "the server loads its data; publishing goes on when it has (at the login it is a row below)"},
	notConnected: {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "there is no connection: nobody answers, or the server refuses the login (`NOAUTH`, `WRONGPASS`, `LOADING`), is below 7.2 and `wait_aof` is set, or is a node of a cluster"},
	notSent:      {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the time or the context ended while it waited to be sent"},
	closed:       {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the publisher is closed"},

	staleOwner:     {broker.Throttled, CodeStaleOwner, "`STALEOWNER`, of the fence", "a later owner of its partition has published: this relay owns it no longer, and learns so from the database"},
	tooManyPending: {broker.Throttled, broker.CodeThrottled, "before it is sent", "more messages than `MaxPending` wait for their answers"},

	connectionLost: {broker.Uncertain, broker.CodeUnconfirmed, "the connection broke after it was sent", "it may be stored"},
	noAnswer:       {broker.Uncertain, broker.CodePublishTimeout, "no answer within `AckTimeout` or the context's deadline", "it may be stored"},
	contextEnded:   {broker.Uncertain, broker.CodeUnconfirmed, "the context was cancelled after it was sent", "it may be stored"},
	notOnDisk:      {broker.Uncertain, broker.CodeUnconfirmed, "`WAITAOF` says so *", "the stream has it, and the disk does not: `appendonly no`, or no fsync in time"},
}

// result is the answer for a message in this situation. Its cause never goes out to a consumer.
func (s situation) result(cause error) broker.Result {
	v := verdicts[s]
	r := broker.Result{Outcome: v.outcome, Code: v.code, Err: cause}
	if s == staleOwner {
		r.After = staleAfter
	}
	return r
}

// errorf is a result with a cause in words.
func (s situation) errorf(format string, args ...any) broker.Result {
	return s.result(fmt.Errorf("redis: "+format, args...))
}

var (
	errNotOnDisk = errors.New("not on the server's disk")
	errCluster   = &outbox.Error{
		Code: outbox.ErrConfigInvalid.Code, Op: "redis publisher", Detail: "the server is a node of a cluster",
		Hint: "name a server of its own: streams of a cluster lie on several nodes, and this publisher has one connection",
	}
)

// isReply reports whether the server said it.
func isReply(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// judge says what an error of the server means for a message: its first word does.
func judge(err error) situation {
	if err == nil {
		return taken
	}
	word, _, _ := strings.Cut(err.Error(), " ")
	switch word {
	case "WRONGTYPE":
		return wrongType
	case "NOPERM":
		return permissionDenied
	case "OOM":
		return outOfMemory
	case "READONLY":
		return readOnly
	case "MISCONF":
		return diskFailed
	case "NOREPLICAS":
		return noReplicas
	case "BUSY":
		return busy
	case "LOADING", "MASTERDOWN":
		return loading
	case "NOAUTH":
		return notConnected
	}
	if isStale(err) {
		return staleOwner
	}
	return refused
}

// hintOf says what to do about what the server said; empty: it did not say.
func hintOf(err error) string {
	if hint := outbox.Hint(err); hint != "" || !isReply(err) {
		return hint
	}
	switch judge(err) {
	case outOfMemory:
		return "its maxmemory is reached: trim streams (max_len, max_age), or raise maxmemory; see: INFO memory"
	case readOnly:
		return "it is a replica: name the master's address; see: ROLE"
	case diskFailed:
		return "it cannot write its files: look into its log and at its disk; see: INFO persistence"
	case noReplicas:
		return "replicas are missing for min-replicas-to-write; see: INFO replication"
	case busy:
		return "a script runs and runs; SCRIPT KILL ends it"
	case loading:
		return "it loads its data, and goes on when it has; see: INFO persistence"
	default:
	}
	return "are user and password right, and may the user run PING, XADD and with a fence EVAL? See: ACL WHOAMI, ACL LOG"
}

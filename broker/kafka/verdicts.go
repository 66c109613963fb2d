package kafka

import (
	"fmt"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// situation is what can become of a message; verdicts says what it means for the relay.
type situation int

const (
	taken situation = iota
	takenBefore

	badTopic
	templateFailed
	badText
	tooLarge
	tooLargeByNow
	refused
	noTopic
	permissionDenied
	badTime
	behind
	otherError

	tooFewReplicas
	noLeader
	notAllowed
	serverFailed
	notConnected
	notSent
	closed

	busy
	tooManyPending

	connectionLost
	unconfirmed
	forgotten
	noAnswer
	contextEnded

	alreadyThere
	unclaimed
	idNotAllowed
	noCoordinator
	badTimeout
	noProgress
	aborted

	situations // how many there are
)

// verdict is a row of the table in docs/brokers/kafka.md, which a test compares with this one.
type verdict struct {
	outcome broker.Outcome
	code    outbox.Code
	seen    string // how the publisher knows
	means   string
}

var verdicts = [situations]verdict{
	taken:       {broker.Accepted, "", "answer without error", "all in-sync replicas have it; partition and offset are the position"},
	takenBefore: {broker.Duplicate, "", "`DUPLICATE_SEQUENCE_NUMBER` *", "an earlier attempt of the same call was stored"},

	badTopic:         {broker.Rejected, broker.CodeUnroutable, "before it is sent", "the topic is no name that a Kafka topic can have: 1 to 249 of `A-Z`, `a-z`, `0-9`, `.`, `_`, `-`, and neither `.` nor `..`"},
	templateFailed:   {broker.Rejected, broker.CodeTemplateFailed, "before it is sent", "`topic_template` or `key_template` fails for the message, or gives a name that is empty or cannot be sent"},
	badText:          {broker.Rejected, outbox.ErrFieldInvalid.Code, "before it is sent", "`cloudevents-structured`: a text is not valid UTF-8"},
	tooLarge:         {broker.Rejected, broker.CodeTooLarge, "before it is sent", "the record is larger than the topic's `max.message.bytes`"},
	tooLargeByNow:    {broker.Rejected, broker.CodeTooLarge, "`MESSAGE_TOO_LARGE`, alone in its batch", "the topic's `max.message.bytes` was lowered meanwhile"},
	refused:          {broker.Rejected, broker.CodeRejected, "`INVALID_RECORD`, alone in its batch", "the topic takes no such record: it is compacted, and the record has no key"},
	noTopic:          {broker.Retry, broker.CodeUnroutable, "`UNKNOWN_TOPIC_OR_PARTITION`, for a second", "the topic does not exist; with the attempts used up it is a dead letter"},
	permissionDenied: {broker.Retry, broker.CodePermission, "`TOPIC_AUTHORIZATION_FAILED`", "the relay's user may not write to this topic"},
	badTime:          {broker.Retry, broker.CodeRejected, "`INVALID_TIMESTAMP`, alone in its batch", "it was created later than the topic's `message.timestamp.after.max.ms` allows, or earlier than `.before.max.ms`"},
	behind:           {broker.Retry, broker.CodeRejected, "before it is sent", "an earlier message of its key was refused: it goes behind that one"},
	otherError:       {broker.Retry, broker.CodeRejected, "any other error that Kafka does not call retriable, alone in its batch *", "the broker refuses this message"},

	tooFewReplicas: {broker.Unavailable, broker.CodeUnavailable, "`NOT_ENOUGH_REPLICAS`, for three seconds", "fewer replicas are in sync than `min.insync.replicas`; nothing was stored"},
	noLeader:       {broker.Unavailable, broker.CodeUnavailable, "`LEADER_NOT_AVAILABLE`, `NOT_LEADER_OR_FOLLOWER` and the like, for three seconds", "the partition has no leader, or is being moved"},
	notAllowed:     {broker.Unavailable, broker.CodePermission, "`CLUSTER_AUTHORIZATION_FAILED`", "the relay's user may not write anything"},
	serverFailed:   {broker.Unavailable, broker.CodeUnavailable, "any other error that Kafka calls retriable, for a second *", "the broker takes nothing now"},
	notConnected:   {broker.Unavailable, broker.CodeUnavailable, "before it is sent, for a second", "there is no connection to the partition's leader, or its user and password are refused"},
	notSent:        {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the time or the context ended while it waited, or that of an earlier message of its key"},
	closed:         {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the publisher is closed"},

	busy:           {broker.Throttled, broker.CodeThrottled, "`THROTTLING_QUOTA_EXCEEDED` *", "the broker has enough for now"},
	tooManyPending: {broker.Throttled, broker.CodeThrottled, "before it is sent", "more messages than `MaxPending` wait for their answers"},

	connectionLost: {broker.Uncertain, broker.CodeUnconfirmed, "the connection broke after it was sent, and the same batch could not be sent again in time", "it may be stored"},
	unconfirmed:    {broker.Uncertain, broker.CodeUnconfirmed, "`NOT_ENOUGH_REPLICAS_AFTER_APPEND`, `REQUEST_TIMED_OUT`, `KAFKA_STORAGE_ERROR`, `UNKNOWN_SERVER_ERROR`, until its time is over", "the leader may have stored it, and too few others"},
	forgotten:      {broker.Uncertain, broker.CodeUnconfirmed, "`OUT_OF_ORDER_SEQUENCE_NUMBER` or `UNKNOWN_PRODUCER_ID` for a batch that was sent before *", "the broker has lost what it knew of the producer"},
	noAnswer:       {broker.Uncertain, broker.CodePublishTimeout, "no answer within `AckTimeout` or the context's deadline", "it may be stored"},
	contextEnded:   {broker.Uncertain, broker.CodeUnconfirmed, "the context was cancelled after it was sent", "it may be stored"},

	alreadyThere:  {broker.Duplicate, "", "transactions: before it is sent", "the progress topic says that it was published, by this relay or one before it, and not settled"},
	unclaimed:     {broker.Throttled, broker.CodeUnclaimed, "transactions: before it is sent", "another relay has claimed the partition of the outbox, or nobody has"},
	idNotAllowed:  {broker.Unavailable, broker.CodePermission, "transactions: `TRANSACTIONAL_ID_AUTHORIZATION_FAILED`, for a second", "the relay's user may not use the transactional id"},
	noCoordinator: {broker.Unavailable, broker.CodeUnavailable, "transactions: `COORDINATOR_NOT_AVAILABLE`, `COORDINATOR_LOAD_IN_PROGRESS`, `NOT_COORDINATOR`, for three seconds", "the broker that coordinates the transactions is lost, or is being replaced"},
	badTimeout:    {broker.Unavailable, broker.CodeUnavailable, "transactions: `INVALID_TRANSACTION_TIMEOUT`, for a second", "the timeout is longer than the brokers' `transaction.max.timeout.ms`"},
	noProgress:    {broker.Unavailable, broker.CodeUnavailable, "transactions: before it is sent, for a second", "the progress topic is not there, or cannot be read or written"},
	aborted:       {broker.Unavailable, broker.CodeUnavailable, "transactions: `PRODUCER_FENCED`, `INVALID_PRODUCER_EPOCH`, `INVALID_TXN_STATE` and the like, for a second", "the transaction was aborted from outside, by its timeout or a claim, each time that it was sent again"},
}

// result is the answer for a message in this situation. Its cause never goes out to a consumer.
func (s situation) result(cause error) broker.Result {
	v := verdicts[s]
	return broker.Result{Outcome: v.outcome, Code: v.code, Err: cause}
}

// errorf is a result with a cause in words.
func (s situation) errorf(format string, args ...any) broker.Result {
	return s.result(fmt.Errorf("kafka: "+format, args...))
}

// kind is what the publisher does about an error of a batch.
type kind uint8

const (
	stored    kind = iota // it is there
	again                 // nothing was stored, and a later attempt may be taken
	ambiguous             // it may be stored; the same batch may be sent again
	single                // one record may be to blame: smaller batches tell which
	whole                 // the partition takes nothing of ours
	reset                 // the broker lost our place: nothing was stored, and a new producer begins
)

// judge says what the error code of a batch means. Codes: https://kafka.apache.org/protocol#protocol_error_codes
func judge(code int16, retriable bool) (situation, kind) {
	switch code {
	case 0:
		return taken, stored
	case 46: // DUPLICATE_SEQUENCE_NUMBER
		return takenBefore, stored
	case 10, 18: // MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE
		return tooLargeByNow, single
	case 87: // INVALID_RECORD
		return refused, single
	case 32: // INVALID_TIMESTAMP
		return badTime, single
	case 29: // TOPIC_AUTHORIZATION_FAILED
		return permissionDenied, whole
	case 31, 53: // CLUSTER_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED
		return notAllowed, whole
	case 89: // THROTTLING_QUOTA_EXCEEDED
		return busy, whole
	case 19: // NOT_ENOUGH_REPLICAS
		return tooFewReplicas, again
	case 3, 5, 6, 8, 9, 13, 72, 74, 75, 76, 100, 103: // UNKNOWN_TOPIC_OR_PARTITION, leader gone, moved, of another epoch; topic of another id
		return noLeader, again
	case -1, 7, 20, 56: // UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_STORAGE_ERROR
		return unconfirmed, ambiguous
	case 45, 47, 49, 59, 90: // OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, UNKNOWN_PRODUCER_ID, PRODUCER_FENCED
		return forgotten, reset
	}
	if retriable {
		return serverFailed, again
	}
	return otherError, single
}

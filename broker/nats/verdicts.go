package nats

import (
	"fmt"
	"net/http"
	"strings"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// situation is what can become of a message; verdicts says what it means for the relay.
type situation int

const (
	taken situation = iota
	takenBefore
	found

	badSubject
	templateFailed
	badText
	badHeader
	reservedHeader
	aboveMaxPayload
	aboveMaxMsgSize
	unroutable
	permissionDenied
	subjectFull
	overtaken
	refused

	noStream
	noSubjects
	noJetStream
	justChanged
	streamFull
	streamSealed
	unsafe
	unreadable
	serverFailed
	notConnected
	notSent
	closed

	busy
	tooManyPending

	inProcess
	connectionLost
	noAnswer
	contextEnded

	situations // how many there are

	unseen situation = -1 // of a doubt alone: nothing is known of the stream yet
)

// verdict is a row of the table in docs/brokers/jetstream.md, which a test compares with this one.
type verdict struct {
	outcome broker.Outcome
	code    outbox.Code
	seen    string // how the publisher knows
	means   string
}

var verdicts = [situations]verdict{
	taken:       {broker.Accepted, "", "acknowledgement", "the stream has it; its sequence is the position"},
	takenBefore: {broker.Duplicate, "", "acknowledgement with `duplicate`", "the stream has it already; the position is that of the first copy"},

	found: {broker.Duplicate, "", "compare mode: API error 10071, 10164, or what is known of the subject; then looked up", "the stream has it already, behind others of its key too"},

	badSubject:       {broker.Rejected, broker.CodeUnroutable, "before it is sent", "the topic is no subject that may be published to: empty words, wildcards, blanks, control characters, or one of the server's own (`$JS.`, `$SYS.`, `_INBOX.` ...)"},
	templateFailed:   {broker.Rejected, broker.CodeTemplateFailed, "before it is sent", "`topic_template` fails for the message, or gives a name that is empty or cannot be sent"},
	badText:          {broker.Rejected, outbox.ErrFieldInvalid.Code, "before it is sent", "`cloudevents-structured`: a text is not valid UTF-8"},
	badHeader:        {broker.Rejected, outbox.ErrHeaderInvalid.Code, "before it is sent", "a header has a line break, or a name that cannot be sent"},
	reservedHeader:   {broker.Rejected, outbox.ErrHeaderReserved.Code, "before it is sent", "a header of the message begins with `Nats-`: it would command the server"},
	aboveMaxPayload:  {broker.Rejected, broker.CodeTooLarge, "before it is sent", "payload and headers are larger than the server's `max_payload`"},
	aboveMaxMsgSize:  {broker.Rejected, broker.CodeTooLarge, "API error 10054, 10097", "payload and headers are larger than the stream's `max_msg_size`"},
	unroutable:       {broker.Rejected, broker.CodeUnroutable, "no responders (503), API error 10060, or the stream's subjects; then looked up", "the stream exists, and the topic is none of its subjects"},
	permissionDenied: {broker.Retry, broker.CodePermission, "permissions violation", "the relay's user may not publish to this subject"},
	subjectFull:      {broker.Retry, broker.CodeRejected, "API error 10077, maximum messages per subject", "the stream takes no more of this subject"},
	overtaken:        {broker.Retry, broker.CodeRejected, "compare mode: API error 10071, 10164, 20 times; or 1,000 messages of others were read for it", "others publish to its subject"},
	refused:          {broker.Retry, broker.CodeRejected, "any other API error of class 4xx", "the stream refuses this message"},

	noStream:     {broker.Unavailable, broker.CodeUnavailable, "no responders (503) or API error 10059, 10060; then looked up", "the stream does not exist; publishing goes on when it is made"},
	noSubjects:   {broker.Unavailable, broker.CodeUnavailable, "as above", "the stream takes no subject at all: a mirror"},
	noJetStream:  {broker.Unavailable, broker.CodeUnavailable, "no responders (503) and no answer to the look-up; API error 10008, 10039, 10076", "JetStream does not answer: off, or without a leader"},
	justChanged:  {broker.Unavailable, broker.CodeUnavailable, "no responders (503); then looked up", "the stream takes the subject by now: it was being made, changed or moved"},
	streamFull:   {broker.Unavailable, broker.CodeUnavailable, "API error 10077, 10002, 10023, 10028, 10047, 10122", "the stream (`discard: new`), the account or the disk is full"},
	streamSealed: {broker.Unavailable, broker.CodeUnavailable, "API error 10109", "the stream is sealed"},
	unsafe:       {broker.Unavailable, codeUnsafe, "compare mode: the stream's configuration", "the stream removes or changes messages in ways that compare mode cannot see"},
	unreadable:   {broker.Unavailable, broker.CodeUnavailable, "compare mode: API error 10071, 10164; then looked up", "the messages of its subject cannot be read"},
	serverFailed: {broker.Unavailable, broker.CodeUnavailable, "any other API error of class 5xx *", "the server failed"},
	notConnected: {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "there is no connection"},
	notSent:      {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the time or the context ended while it waited to be sent"},
	closed:       {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the publisher is closed"},

	busy:           {broker.Throttled, broker.CodeThrottled, "API error 10167, or any other of class 429", "the stream's queue is full"},
	tooManyPending: {broker.Throttled, broker.CodeThrottled, "before it is sent", "more messages than `MaxPending` wait for their answers"},

	inProcess:      {broker.Uncertain, broker.CodeUnconfirmed, "API error 10158, or any other of class 409", "an earlier copy of it is being stored at this moment; the next try knows"},
	connectionLost: {broker.Uncertain, broker.CodeUnconfirmed, "the connection broke after it was sent", "it may be stored"},
	noAnswer:       {broker.Uncertain, broker.CodePublishTimeout, "no answer within `AckTimeout` or the context's deadline", "it may be stored"},
	contextEnded:   {broker.Uncertain, broker.CodeUnconfirmed, "the context was cancelled after it was sent", "it may be stored"},
}

// result is the answer for a message in this situation. Its cause never goes out to a consumer.
func (s situation) result(cause error) broker.Result {
	v := verdicts[s]
	return broker.Result{Outcome: v.outcome, Code: v.code, Err: cause}
}

// errorf is a result with a cause in words.
func (s situation) errorf(format string, args ...any) broker.Result {
	return s.result(fmt.Errorf("nats: "+format, args...))
}

// judge says what an API error in place of an acknowledgement means. Situations that a look-up must settle come with
// doubt.
func judge(e *natsgo.APIError) (s situation, doubt bool) {
	switch e.ErrorCode {
	case 10059, 10060: // stream not found, expected stream does not match
		return noStream, true
	case 10054, 10097: // message or header size exceeds maximum
		return aboveMaxMsgSize, false
	case 10077: // store failed, with the store's own words
		if strings.Contains(e.Description, "per subject") {
			return subjectFull, false
		}
		return streamFull, false
	case 10002, 10023, 10028, 10047, 10122: // limits of account, server, memory, storage, account's bytes
		return streamFull, false
	case 10008, 10039, 10076: // temporarily unavailable, not enabled for account, not enabled
		return noJetStream, false
	case 10109:
		return streamSealed, false
	case 10158: // duplicate message id is in process
		return inProcess, false
	case 10167: // too many requests
		return busy, false
	}
	switch {
	case e.Code >= http.StatusInternalServerError:
		return serverFailed, false
	case e.Code == http.StatusTooManyRequests:
		return busy, false
	case e.Code == http.StatusConflict:
		return inProcess, false
	}
	return refused, false
}

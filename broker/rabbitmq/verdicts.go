package rabbitmq

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// situation is what can become of a message; verdicts says what it means for the relay.
type situation int

const (
	taken situation = iota

	templateFailed
	badText
	badAddress
	badHeader
	reservedHeader
	headersTooLarge
	aboveKnownLimit
	aboveLimit
	unroutable
	noSuchExchange
	unroutableYet
	permissionDenied
	refused
	nacked

	noExchange
	blocked
	notConnected
	notSent
	closed

	tooManyPending

	channelClosed
	connectionLost
	noAnswer
	contextEnded
	unclear

	situations // how many there are
)

// verdict is a row of the table in docs/brokers/rabbitmq.md, which a test compares with this one.
type verdict struct {
	outcome broker.Outcome
	code    outbox.Code
	seen    string // how the publisher knows
	means   string
}

var verdicts = [situations]verdict{
	taken: {broker.Accepted, "", "`basic.ack` without `basic.return`", "each queue that it goes to has it, on disk where queue and message are durable"},

	templateFailed:  {broker.Rejected, broker.CodeTemplateFailed, "before it is sent", "`rabbitmq.exchange` or `routing_key_template` fails for the message, or gives a name that cannot be sent"},
	badText:         {broker.Rejected, outbox.ErrFieldInvalid.Code, "before it is sent", "`cloudevents-structured`: a text is not valid UTF-8"},
	badAddress:      {broker.Rejected, broker.CodeUnroutable, "before it is sent", "its exchange or routing key has more than 255 bytes, or the template gives no exchange"},
	badHeader:       {broker.Rejected, outbox.ErrHeaderInvalid.Code, "before it is sent", "the name of a header is empty or has more than 255 bytes"},
	reservedHeader:  {broker.Rejected, outbox.ErrHeaderReserved.Code, "before it is sent", "a header of the message is `CC` or `BCC`: it would command the server"},
	headersTooLarge: {broker.Rejected, outbox.ErrHeadersTooLarge.Code, "before it is sent", "headers and properties are larger than a frame of this connection (`frame_max`)"},
	aboveKnownLimit: {broker.Rejected, broker.CodeTooLarge, "before it is sent", "the payload is larger than `max_message_size`, which the server has named before"},
	aboveLimit:      {broker.Rejected, broker.CodeTooLarge, "channel closed, 406 or 311, and nothing else was on its way there", "the payload is larger than the server's `max_message_size`"},
	unroutable:      {broker.Rejected, broker.CodeUnroutable, "`basic.return`, 312, then `basic.ack`", "no queue takes it: no binding matches its routing key"},
	noSuchExchange:  {broker.Rejected, broker.CodeUnroutable, "channel closed, 404, and nothing else was on its way there", "the exchange that the template names does not exist"},

	unroutableYet:    {broker.Retry, broker.CodeUnroutable, "`basic.return`, 312, then `basic.ack`, in the first 10 s of a connection that was made again", "no queue takes it, or none yet: a server that was started again takes connections before it knows each queue"},
	permissionDenied: {broker.Retry, broker.CodePermission, "channel closed, 403, and nothing else was on its way there", "the relay's user may not write to the exchange, or not with this routing key, or the exchange is internal"},
	refused:          {broker.Retry, broker.CodeRejected, "channel closed with another code, and nothing else was on its way there *", "the server refuses this message"},
	nacked:           {broker.Retry, broker.CodeRejected, "`basic.nack`", "a queue refuses it: full with `overflow: reject-publish`, or it failed; another queue may have it"},

	noExchange:   {broker.Unavailable, broker.CodeUnavailable, "channel closed, 404, and nothing else was on its way there", "the exchange does not exist; publishing goes on when it is declared"},
	blocked:      {broker.Unavailable, broker.CodeUnavailable, "`connection.blocked`; before it is sent", "an alarm of the server's memory or disk: it reads nothing from publishers"},
	notConnected: {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "there is no connection"},
	notSent:      {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the time or the context ended while it waited to be sent"},
	closed:       {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the publisher is closed"},

	tooManyPending: {broker.Throttled, broker.CodeThrottled, "before it is sent", "more messages than `MaxPending` wait for their answers"},

	channelClosed:  {broker.Uncertain, broker.CodeUnconfirmed, "channel closed, and more than one message was on its way there", "one of them closed it; those before it may be stored. Each goes alone the next time"},
	connectionLost: {broker.Uncertain, broker.CodeUnconfirmed, "the connection broke after it was sent", "it may be stored"},
	noAnswer:       {broker.Uncertain, broker.CodePublishTimeout, "no answer within `AckTimeout` or the context's deadline", "it may be stored"},
	contextEnded:   {broker.Uncertain, broker.CodeUnconfirmed, "the context was cancelled after it was sent", "it may be stored"},
	unclear:        {broker.Uncertain, broker.CodeUnconfirmed, "`basic.return` for one of two copies on their way", "nobody knows which copy was returned"},
}

// result is the answer for a message in this situation. Its cause never goes out to a consumer.
func (s situation) result(cause error) broker.Result {
	v := verdicts[s]
	return broker.Result{Outcome: v.outcome, Code: v.code, Err: cause}
}

// errorf is a result with a cause in words.
func (s situation) errorf(format string, args ...any) broker.Result {
	return s.result(fmt.Errorf("rabbitmq: "+format, args...))
}

// The reply codes of AMQP 0-9-1 that a publisher gets.
const (
	codeTooLarge     = amqp.ContentTooLarge
	codeRefused      = amqp.AccessRefused
	codeNotFound     = amqp.NotFound
	codePrecondition = amqp.PreconditionFailed
)

// codeOf is the reply code with which the server closed a channel or connection; 0: it did not.
func codeOf(err error) int {
	if e := (*amqp.Error)(nil); errors.As(err, &e) && e.Server {
		return e.Code
	}
	return 0
}

// judge says what it means for a message that the server closed its channel because of it.
func (p *Publisher) judge(e *amqp.Error) situation {
	switch e.Code {
	case codeNotFound:
		if _, fixed := p.route.fixed(); fixed {
			return noExchange
		}
		return noSuchExchange
	case codeRefused:
		return permissionDenied
	case codeTooLarge:
		return aboveLimit
	case codePrecondition:
		if _, ok := sizeLimit(e); ok {
			return aboveLimit
		}
	}
	return refused
}

package servicebus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// situation is what can become of a message; verdicts says what it means for the relay.
type situation int

const (
	taken situation = iota

	templateFailed
	badText
	badSchedule
	aboveKnownLimit
	aboveLimit
	refusedForGood
	noSuchEntity

	permissionDenied
	full
	disabled
	released
	modified
	refused

	noEntity
	allFull
	allDisabled
	notAuthorized
	linkRefused
	notConnected
	noCredit
	notSent
	closed

	serverBusy
	tooManyPending

	linkLost
	noAnswer
	contextEnded
	unclear

	situations // how many there are
)

// busyAfter is how long the service asks to be left alone when it throttles.
const busyAfter = 10 * time.Second

// verdict is a row of the table in docs/brokers/servicebus.md, which a test compares with this one.
type verdict struct {
	outcome broker.Outcome
	code    outbox.Code
	seen    string // how the publisher knows
	means   string
}

const (
	beforeItIsSent = "before it is sent"
	either         = ", of the message or of the link" // where a condition comes with
	oneForAll      = "; all messages go there"
	oneOfMany      = "; others go elsewhere"
)

var verdicts = [situations]verdict{
	taken: {broker.Accepted, "", "outcome `accepted`", "the queue or topic has it, or dropped it as a duplicate"},

	templateFailed:  {broker.Rejected, broker.CodeTemplateFailed, beforeItIsSent, "a template fails for the message, or gives a name that cannot be sent"},
	badText:         {broker.Rejected, outbox.ErrFieldInvalid.Code, beforeItIsSent, "`cloudevents-structured`: a text is not valid UTF-8"},
	badSchedule:     {broker.Rejected, outbox.ErrHeaderInvalid.Code, beforeItIsSent, "the header that `schedule_header` names is no time"},
	aboveKnownLimit: {broker.Rejected, broker.CodeTooLarge, beforeItIsSent, "the message, headers and all, is larger than the link says (256 KB in the tier Standard)"},
	aboveLimit:      {broker.Rejected, broker.CodeTooLarge, "`amqp:link:message-size-exceeded`, of the message", "the message is larger than the service takes"},
	refusedForGood:  {broker.Rejected, broker.CodeRejected, "`amqp:not-allowed`, `amqp:not-implemented`, `amqp:invalid-field`, `amqp:decode-error`, `com.microsoft:argument-error`, `com.microsoft:argument-out-of-range`, of the message", "the service will never take it; such as one without a key where sessions are required"},
	noSuchEntity:    {broker.Rejected, broker.CodeUnroutable, "`amqp:not-found` or `amqp:resource-deleted`" + either + oneOfMany, "the queue or topic that the message names does not exist"},

	permissionDenied: {broker.Retry, broker.CodePermission, "`amqp:unauthorized-access` or `com.microsoft:auth-failed`" + either, "the key or identity may not send there"},
	full:             {broker.Retry, broker.CodeThrottled, "`amqp:resource-limit-exceeded`" + either + oneOfMany, "the queue or topic is full, or has too many links"},
	disabled:         {broker.Retry, broker.CodeUnavailable, "`com.microsoft:entity-disabled`" + either + oneOfMany, "the queue or topic is disabled for sending"},
	released:         {broker.Retry, broker.CodeRejected, "outcome `released`", "the service did not take it, and says no reason"},
	modified:         {broker.Retry, broker.CodeRejected, "outcome `modified`", "the service tried and did not take it"},
	refused:          {broker.Retry, broker.CodeRejected, "outcome `rejected` with any other condition, such as `amqp:resource-locked`, or none", "the service refuses this message now"},

	noEntity:      {broker.Unavailable, broker.CodeUnavailable, "`amqp:not-found` or `amqp:resource-deleted`" + either + oneForAll, "the queue or topic does not exist; publishing goes on when it is made"},
	allFull:       {broker.Unavailable, broker.CodeUnavailable, "`amqp:resource-limit-exceeded`" + either + oneForAll, "the queue or topic is full, or has too many links"},
	allDisabled:   {broker.Unavailable, broker.CodeUnavailable, "`com.microsoft:entity-disabled`" + either + oneForAll, "the queue or topic is disabled for sending"},
	notAuthorized: {broker.Unavailable, broker.CodeUnavailable, "`$cbs` refuses the token, or there is none", "the key or the signature is wrong or has ended, or the credential has no identity"},
	linkRefused:   {broker.Unavailable, broker.CodeUnavailable, "the link is refused with any other condition, or not opened in time", "the queue or topic cannot be opened now"},
	notConnected:  {broker.Unavailable, broker.CodeUnavailable, beforeItIsSent, "there is no connection"},
	noCredit:      {broker.Unavailable, broker.CodeUnavailable, "the link gave no credit until the time or the context ended", "the service takes nothing from this link; the message was not sent"},
	notSent:       {broker.Unavailable, broker.CodeUnavailable, beforeItIsSent, "the time or the context ended while it waited to be sent"},
	closed:        {broker.Unavailable, broker.CodeUnavailable, beforeItIsSent, "the publisher is closed"},

	serverBusy:     {broker.Throttled, broker.CodeThrottled, "`com.microsoft:server-busy`" + either, "the namespace has enough for now: 10 s"},
	tooManyPending: {broker.Throttled, broker.CodeThrottled, beforeItIsSent, "more messages than `MaxPending` wait for their answers"},

	linkLost:     {broker.Uncertain, broker.CodeUnconfirmed, "link, session or connection ended after it was sent, for whatever reason", "it may be stored"},
	noAnswer:     {broker.Uncertain, broker.CodePublishTimeout, "no outcome within `AckTimeout` or the context's deadline", "it may be stored; the link is made anew"},
	contextEnded: {broker.Uncertain, broker.CodeUnconfirmed, "the context was cancelled after it was sent", "it may be stored"},
	unclear:      {broker.Uncertain, broker.CodeUnconfirmed, "settled without an outcome, or `com.microsoft:timeout`, `com.microsoft:operation-cancelled`, `amqp:internal-error`, of the message", "the service does not say whether it has it"},
}

// result is the answer for a message in this situation. Its cause never goes out to a consumer.
func (s situation) result(cause error) broker.Result {
	v := verdicts[s]
	r := broker.Result{Outcome: v.outcome, Code: v.code, Err: cause}
	if s == serverBusy {
		r.After = busyAfter
	}
	return r
}

// errorf is a result with a cause in words.
func (s situation) errorf(format string, args ...any) broker.Result {
	return s.result(fmt.Errorf("servicebus: "+format, args...))
}

// judge says what an outcome means for its message.
func (p *Publisher) judge(outcome amqp.DeliveryState) broker.Result {
	switch o := outcome.(type) {
	case *amqp.StateAccepted:
		return taken.result(nil)
	case *amqp.StateReleased:
		return released.errorf("the service released it")
	case *amqp.StateModified:
		return modified.errorf("the service modified it: failed %t, undeliverable here %t", o.DeliveryFailed, o.UndeliverableHere)
	case *amqp.StateRejected:
		if o.Error == nil {
			return refused.errorf("the service rejected it, and says no reason")
		}
		return p.judgeRejection(o.Error.Condition).errorf("the service rejected it: %w", o.Error)
	default:
		return unclear.errorf("settled with %v", outcome)
	}
}

// judgeRejection says what the condition of a rejected message means.
func (p *Publisher) judgeRejection(c amqp.ErrCond) situation {
	switch c {
	case amqp.ErrCondMessageSizeExceeded:
		return aboveLimit
	case amqp.ErrCondNotAllowed, amqp.ErrCondNotImplemented, amqp.ErrCondInvalidField, amqp.ErrCondDecodeError,
		"com.microsoft:argument-error", "com.microsoft:argument-out-of-range":
		return refusedForGood
	case "com.microsoft:timeout", "com.microsoft:operation-cancelled", amqp.ErrCondInternalError:
		return unclear
	}
	if s, known := p.judgeEntity(c); known {
		return s
	}
	return refused
}

// judgeEntity says what a condition means that is the entity's: of a message, or when it is opened. Where all messages go to
// one entity it holds for all, and uses up no attempt.
func (p *Publisher) judgeEntity(c amqp.ErrCond) (s situation, known bool) {
	one := func(of, all situation) situation {
		if p.fixed != "" {
			return all
		}
		return of
	}
	switch c {
	case amqp.ErrCondNotFound, amqp.ErrCondResourceDeleted:
		return one(noSuchEntity, noEntity), true
	case amqp.ErrCondUnauthorizedAccess, "com.microsoft:auth-failed":
		return permissionDenied, true
	case amqp.ErrCondResourceLimitExceeded:
		return one(full, allFull), true
	case "com.microsoft:entity-disabled":
		return one(disabled, allDisabled), true
	case "com.microsoft:server-busy":
		return serverBusy, true
	}
	return 0, false
}

// judgeAttach says what it means that an entity cannot be opened.
func (p *Publisher) judgeAttach(err error) situation {
	if claim := (*claimError)(nil); errors.As(err, &claim) && claim.status == 404 {
		s, _ := p.judgeEntity(amqp.ErrCondNotFound)
		return s
	} else if claim != nil || errors.Is(err, errCredential) {
		return notAuthorized
	}
	if lost := (*amqp.ConnError)(nil); errors.As(err, &lost) {
		return notConnected
	}
	if e := (*amqp.Error)(nil); errors.As(err, &e) {
		if s, known := p.judgeEntity(e.Condition); known {
			return s
		}
	}
	return linkRefused
}

// tooLarge reports whether the client refused a message because of the link's limit, before it sent anything.
func tooLarge(err error) bool {
	e := (*amqp.Error)(nil)
	return errors.As(err, &e) && e.Condition == amqp.ErrCondMessageSizeExceeded && !detached(err)
}

// detached reports whether the service ended the link: what is sent there afterwards it does not take.
func detached(err error) bool {
	e := (*amqp.LinkError)(nil)
	return errors.As(err, &e) && e.RemoteErr != nil
}

// isOver reports whether time ran out.
func isOver(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

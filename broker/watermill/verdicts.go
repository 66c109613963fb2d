package watermill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// situation is what can become of a message; verdicts says what it means for the relay.
type situation int

const (
	taken situation = iota
	saidDuplicate

	templateFailed
	badText
	saidRejected

	saidRetry
	panicked
	behind

	saidUnavailable
	notConnected
	notSent
	closed

	saidThrottled

	failed
	noAnswer
	contextEnded

	situations // how many there are
)

// verdict is a row of the table in docs/brokers/watermill.md, which a test compares with this one.
type verdict struct {
	outcome broker.Outcome
	code    outbox.Code
	seen    string // how the publisher knows
	means   string
}

var verdicts = [situations]verdict{
	taken:         {broker.Accepted, "", "`Publish` returned nil", "what Watermill's publisher makes of it: see above"},
	saidDuplicate: {broker.Duplicate, "", "`Config.Outcome` says so of the error", "the broker had it already"},

	templateFailed: {broker.Rejected, broker.CodeTemplateFailed, "before it is sent", "`topic_template` fails for the message, or gives a name that cannot be sent"},
	badText:        {broker.Rejected, outbox.ErrFieldInvalid.Code, "before it is sent", "`cloudevents-structured`: a text is not valid UTF-8"},
	saidRejected:   {broker.Rejected, broker.CodeRejected, "`Config.Outcome` says so of the error", "the broker will never take it"},

	saidRetry: {broker.Retry, broker.CodeRejected, "`Config.Outcome` says so of the error", "the broker may take it later"},
	panicked:  {broker.Retry, broker.CodePanic, "`Publish` panicked", "a fault of Watermill's publisher, or of a decorator; the stack is in the dead letter"},
	behind:    {broker.Retry, broker.CodeRejected, "before it is sent, with `KeepsOrder`", "an earlier message of its key failed: it goes behind that one, and uses up no attempt"},

	saidUnavailable: {broker.Unavailable, broker.CodeUnavailable, "`Config.Outcome` says so of the error", "the broker takes nothing now"},
	notConnected:    {broker.Unavailable, broker.CodeUnavailable, "the error of a connection that could not be made (`net.OpError` of a dial, `ECONNREFUSED`, `net.DNSError`)", "it was not sent"},
	notSent:         {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the context ended while it waited for its key, or for one of `Concurrency` calls"},
	closed:          {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the publisher is closed"},

	saidThrottled: {broker.Throttled, broker.CodeThrottled, "`Config.Outcome` says so of the error", "it is too much for now"},

	failed:       {broker.Uncertain, broker.CodeUnconfirmed, "any other error, or `Config.Outcome` says so", "Watermill's errors do not say whether the broker has it, nor whose fault it was"},
	noAnswer:     {broker.Uncertain, broker.CodePublishTimeout, "`Publish` had not returned at the context's deadline", "it may be stored, or be stored later"},
	contextEnded: {broker.Uncertain, broker.CodeUnconfirmed, "the context was cancelled while `Publish` ran, or `Close` could wait no longer", "it may be stored, or be stored later"},
}

// result is the answer for a message in this situation. Its cause never goes out to a consumer.
func (s situation) result(cause error) broker.Result {
	v := verdicts[s]
	return broker.Result{Outcome: v.outcome, Code: v.code, Err: cause}
}

// errorf is a result with a cause in words.
func (s situation) errorf(format string, args ...any) broker.Result {
	return s.result(fmt.Errorf("watermill: "+format, args...))
}

// panicError is what Watermill's Publish panicked with.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("Publish panicked: %v\n%s", e.value, e.stack) }

// resultOf is the answer for a message that Watermill's Publish has returned this for.
func (p *Publisher) resultOf(ctx context.Context, err error) broker.Result {
	s := p.situationOf(ctx, err)
	if verdicts[s].outcome <= broker.Duplicate {
		err = nil
	}
	return s.result(err)
}

func (p *Publisher) situationOf(ctx context.Context, err error) situation {
	if err == nil {
		return taken
	}
	if said := (*panicError)(nil); errors.As(err, &said) {
		return panicked
	}
	if p.cfg.Outcome != nil {
		if s, said := saidOutcomes[p.cfg.Outcome(err)]; said {
			return s
		}
	}
	if ctx.Err() != nil { // Publish heeds it
		return ended(context.Cause(ctx))
	}
	dial, lookup := (*net.OpError)(nil), (*net.DNSError)(nil)
	if errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &lookup) || errors.Is(err, syscall.ECONNREFUSED) {
		return notConnected
	}
	return failed
}

// saidOutcomes are what Config.Outcome may say.
var saidOutcomes = map[broker.Outcome]situation{
	broker.Accepted: taken, broker.Duplicate: saidDuplicate, broker.Retry: saidRetry, broker.Unavailable: saidUnavailable,
	broker.Throttled: saidThrottled, broker.Rejected: saidRejected, broker.Uncertain: failed,
}

// ended is what the end of a context means for a message that was sent.
func ended(cause error) situation {
	if errors.Is(cause, context.DeadlineExceeded) {
		return noAnswer
	}
	return contextEnded
}

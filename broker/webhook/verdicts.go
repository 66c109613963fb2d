package webhook

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// situation is what can become of a message; verdicts says what it means for the relay.
type situation int

const (
	taken situation = iota

	gone
	tooLarge
	reservedHeader
	badHeader
	badText

	forbidden
	refused
	failed

	unauthorized
	redirected
	down
	addressRefused
	notConnected
	notSent
	closed

	throttled
	busy

	unknownThere
	connectionLost
	noAnswer
	contextEnded

	situations // how many there are
)

// verdict is a row of the table in docs/brokers/webhook.md, which a test compares with this one.
type verdict struct {
	outcome broker.Outcome
	code    outbox.Code
	seen    string // how the publisher knows
	means   string
}

var verdicts = [situations]verdict{
	taken: {broker.Accepted, "", "2xx", "the endpoint has it"},

	gone:           {broker.Rejected, broker.CodeRejected, "410", "the endpoint wants no such message any more"},
	tooLarge:       {broker.Rejected, broker.CodeTooLarge, "413, 431", "payload or headers are larger than the server takes"},
	reservedHeader: {broker.Rejected, outbox.ErrHeaderReserved.Code, "before it is sent", "a header of the message would speak to servers on the way, or in the relay's name: `Authorization`, `Connection`, `Content-Length`, `Expect`, `Host`, `HTTP2-Settings`, `Keep-Alive`, `Proxy-...`, `TE`, `Trailer`, `Transfer-Encoding`, `Upgrade`"},
	badHeader:      {broker.Rejected, outbox.ErrHeaderInvalid.Code, "before it is sent", "a header has a control character, or a name that cannot be sent"},
	badText:        {broker.Rejected, outbox.ErrFieldInvalid.Code, "before it is sent", "`cloudevents-structured`: a text is not valid UTF-8"},

	forbidden: {broker.Retry, broker.CodePermission, "403", "the endpoint refuses it to the relay"},
	refused:   {broker.Retry, broker.CodeRejected, "any other 4xx", "the endpoint refuses this message: it may be mended before the attempts are used up"},
	failed:    {broker.Retry, broker.CodeRejected, "500, and any other 5xx", "the endpoint failed at this message"},

	unauthorized:   {broker.Unavailable, broker.CodePermission, "401, 407", "the endpoint does not know the relay"},
	redirected:     {broker.Unavailable, broker.CodeUnavailable, "3xx", "the endpoint is elsewhere; redirects are not followed, for they would lead the message to where nobody wanted it"},
	down:           {broker.Unavailable, broker.CodeUnavailable, "502; 503 without `Retry-After`", "the endpoint takes nothing now"},
	addressRefused: {broker.Unavailable, CodeAddressRefused, "when its address is dialed", "the address is private, loopback, link-local, shared or reserved, and in no network of `allow_networks`"},
	notConnected:   {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "no connection: the name, the port, the certificate"},
	notSent:        {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the time or the context ended while it waited to be sent, and the endpoint answered nothing meanwhile"},
	closed:         {broker.Unavailable, broker.CodeUnavailable, "before it is sent", "the publisher is closed"},

	throttled: {broker.Throttled, broker.CodeThrottled, "429; 503 with `Retry-After`", "the endpoint has enough for now: the sink waits as long as `Retry-After` says, an hour at the most"},
	busy:      {broker.Throttled, broker.CodeThrottled, "before it is sent", "its time ended while it waited for its turn, and the endpoint answered others meanwhile: it is slower than messages come"},

	unknownThere:   {broker.Uncertain, broker.CodeUnconfirmed, "408, 504", "a server on the way gave up waiting: the endpoint may have it"},
	connectionLost: {broker.Uncertain, broker.CodeUnconfirmed, "the connection broke after it was sent, or its answer cannot be read", "the endpoint may have it"},
	noAnswer:       {broker.Uncertain, broker.CodePublishTimeout, "no answer within `Timeout` or the context's deadline", "the endpoint may have it"},
	contextEnded:   {broker.Uncertain, broker.CodeUnconfirmed, "the context was cancelled after it was sent", "the endpoint may have it"},
}

// result is the answer for a message in this situation. Its cause never goes out to a consumer.
func (s situation) result(cause error) broker.Result {
	v := verdicts[s]
	return broker.Result{Outcome: v.outcome, Code: v.code, Err: cause}
}

// errorf is a result with a cause in words.
func (s situation) errorf(format string, args ...any) broker.Result {
	return s.result(fmt.Errorf("webhook: "+format, args...))
}

// judge says what an answer means; of one that is no acceptance it reads the beginning.
func judge(answer *http.Response, now time.Time) broker.Result {
	s := situationOf(answer.StatusCode, answer.Header.Get("Retry-After") != "")
	if s == taken {
		return s.result(nil)
	}
	said := make([]byte, shown)
	n, _ := io.ReadFull(answer.Body, said)
	r := s.errorf("the endpoint answered %s: %q", answer.Status, said[:n])
	if s == redirected {
		r = s.errorf("the endpoint answered %s to another place: correct the URL", answer.Status)
	}
	if s == throttled {
		r.After = retryAfter(answer.Header, now)
	}
	return r
}

func situationOf(status int, wait bool) situation {
	switch status {
	case http.StatusGone:
		return gone
	case http.StatusRequestEntityTooLarge, http.StatusRequestHeaderFieldsTooLarge:
		return tooLarge
	case http.StatusForbidden:
		return forbidden
	case http.StatusUnauthorized, http.StatusProxyAuthRequired:
		return unauthorized
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return unknownThere
	case http.StatusTooManyRequests:
		return throttled
	case http.StatusBadGateway:
		return down
	case http.StatusServiceUnavailable:
		if wait {
			return throttled
		}
		return down
	}
	switch status / 100 {
	case 2:
		return taken
	case 3:
		return redirected
	case 4:
		return refused
	case 5:
		return failed
	}
	return connectionLost
}

// maxWait is the longest that an endpoint may make its sink wait at once.
const maxWait = time.Hour

// retryAfter is how long Retry-After asks to wait (RFC 9110, section 10.2.3): seconds, or a date, which is counted from the
// answer's own where it has one, because clocks differ. 0: it says nothing that can be used.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 64); err == nil {
		return min(time.Duration(min(seconds, 1<<30))*time.Second, maxWait)
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if sent, err := http.ParseTime(h.Get("Date")); err == nil {
		now = sent
	}
	return max(0, min(at.Sub(now), maxWait))
}

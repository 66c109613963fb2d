package webhook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onwardhq/onward/broker"
)

const (
	maxAnswer = 64 << 10        // bytes of an answer's header, and of its body, that are read
	shown     = 200             // bytes of a refusal that people see
	restTime  = 1 * time.Second // how long the rest of an answer may take, so that its connection can be used again
)

// sender is what a goroutine uses again from message to message.
type sender struct {
	publisher *Publisher
	out       broker.Outgoing
}

// post sends a message and says what became of it. rest reads what is left of the answer, and frees its connection.
func (s *sender) post(f *flight) (r broker.Result, rest func()) {
	p := s.publisher
	ctx, cancel := context.WithTimeout(f.batch.ctx, p.cfg.Timeout)
	unstop := context.AfterFunc(p.stop, cancel)
	rest = func() {
		unstop()
		cancel()
	}
	var sent atomic.Bool // it may be on the wire
	request, refusal := s.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }}),
		&f.batch.envelopes[f.index])
	if refusal != nil {
		return *refusal, rest
	}
	begun := time.Now()
	answer, err := p.client.Do(request) //nolint:bodyclose // rest does
	if err != nil {
		return p.failure(ctx, err, sent.Load()), rest
	}
	p.answered(time.Since(begun))
	late := time.AfterFunc(restTime, cancel) // a body that does not end must not hold the sender
	r = judge(answer, time.Now())
	return r, func() {
		_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer)
		_ = answer.Body.Close()
		late.Stop()
		unstop()
		cancel()
	}
}

// request is the message as a request. Of the envelope nothing is kept: the transport may read a body after the answer.
func (s *sender) request(ctx context.Context, e *broker.Envelope) (*http.Request, *broker.Result) {
	p := s.publisher
	refuse := func(r broker.Result) (*http.Request, *broker.Result) { return nil, &r }
	if err := p.wire.Encode(e, &s.out); err != nil {
		return refuse(badText.result(err))
	}
	body := s.out.Payload
	if p.wire.Format() != broker.FormatStructured {
		body = bytes.Clone(body)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url.String(), bytes.NewReader(body))
	if err != nil {
		return refuse(notSent.result(err))
	}
	request.Header.Set("User-Agent", "Onward")
	for _, h := range s.out.Headers {
		if reserved[strings.ToLower(h.Name)] {
			return refuse(reservedHeader.errorf("header %q would speak to the server, not to the receiver", h.Name))
		}
		if !validName(h.Name) || !validValue(h.Value) {
			return refuse(badHeader.errorf("the value of header %q has a control character, or its name cannot be sent", h.Name))
		}
		request.Header.Add(h.Name, h.Value)
	}
	id := e.ID.String()
	request.Header.Set("Webhook-Id", id)
	if len(p.keys) > 0 {
		at := strconv.FormatInt(time.Now().Unix(), 10)
		request.Header.Set("Webhook-Timestamp", at)
		request.Header.Set("Webhook-Signature", sign(p.keys, id, at, body))
	}
	if p.cfg.Authorization != "" {
		request.Header.Set("Authorization", p.cfg.Authorization)
	}
	return request, nil
}

// failure is the answer for a message that has none from the endpoint.
func (p *Publisher) failure(ctx context.Context, err error, sent bool) broker.Result {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err // the URL may hold a secret
	}
	refused, cause := asRefused(err), context.Cause(ctx)
	switch {
	case refused != nil:
		return addressRefused.errorf("%w", refused)
	case !sent && cause != nil:
		return notSent.errorf("not sent: %w", cause)
	case !sent:
		return notConnected.errorf("no connection: %w", err)
	case errors.Is(cause, context.DeadlineExceeded):
		return noAnswer.errorf("no answer: %w", cause)
	case cause != nil:
		return contextEnded.errorf("no answer before the context ended: %w", cause)
	}
	return connectionLost.errorf("the connection broke, or its answer cannot be read: %w", err)
}

// reserved are headers by which a message would speak to servers on its way, or with the relay's own rights.
var reserved = map[string]bool{
	"authorization": true, "connection": true, "content-length": true, "expect": true, "host": true, "http2-settings": true, "keep-alive": true,
	"proxy-authorization": true, "proxy-connection": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true,
}

// validName: RFC 9110, section 5.6.2.
func validName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return name != ""
}

func validValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

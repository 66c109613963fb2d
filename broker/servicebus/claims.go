package servicebus

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/go-amqp"
)

const (
	tokenSAS = "servicebus.windows.net:sastoken"
	tokenJWT = "jwt"
	scope    = "https://servicebus.azure.net//.default" // as Microsoft's clients write it
)

// sasLife is for how long a token that we sign is good.
const sasLife = 2 * time.Hour

// token is what the service is shown for an entity.
type token struct {
	kind, value string
	expires     time.Time // zero: not known, and not ours to renew
}

// errCredential is before what a credential says.
var errCredential = errors.New("no token")

// token gets one for an audience.
func (d dialer) token(ctx context.Context, audience string) (token, error) {
	switch {
	case d.address.token != "":
		return token{kind: tokenSAS, value: d.address.token}, nil
	case d.address.key != nil:
		expires := time.Now().Add(sasLife)
		return token{tokenSAS, d.address.key.sign(audience, expires), expires}, nil
	}
	t, err := d.options.Credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{scope}})
	if err != nil {
		return token{}, fmt.Errorf("%w: %w", errCredential, err)
	}
	return token{tokenJWT, t.Token, t.ExpiresOn}, nil
}

// sign makes a shared access signature.
func (k *sharedKey) sign(audience string, expires time.Time) string {
	resource, end := strings.ToLower(url.QueryEscape(audience)), strconv.FormatInt(expires.Unix(), 10)
	h := hmac.New(sha256.New, []byte(k.secret))
	h.Write([]byte(resource + "\n" + end))
	signature := url.QueryEscape(base64.StdEncoding.EncodeToString(h.Sum(nil)))
	return "SharedAccessSignature sr=" + resource + "&sig=" + signature + "&se=" + end + "&skn=" + k.name
}

// audience is what a token is for: an entity, or with "" the namespace.
func (d dialer) audience(entity string) string {
	scheme := "amqps://"
	if d.address.emulator {
		scheme = "amqp://"
	}
	return scheme + d.address.host + "/" + entity
}

// claimError is what the service answers to a token.
type claimError struct {
	status int32
	text   string
}

func (e *claimError) Error() string { return fmt.Sprintf("%d %s", e.status, e.text) }

// claim shows the service a token for an entity, and says when that ends. A connection has one link pair to $cbs at a time.
func (l *link) claim(ctx context.Context, d dialer, entity string) (time.Time, error) {
	t, err := d.token(ctx, d.audience(entity))
	if err != nil {
		return time.Time{}, err
	}
	select {
	case l.claims <- struct{}{}:
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
	defer func() { <-l.claims }()
	session, err := l.conn.NewSession(ctx, nil)
	if err != nil {
		return time.Time{}, err
	}
	err = putToken(ctx, session, d.audience(entity), t)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.options.Timeout)
	defer cancel()
	if closing := session.Close(end); closing != nil && err == nil {
		err = closing
	}
	return t.expires, err
}

// putToken is one question and answer.
func putToken(ctx context.Context, session *amqp.Session, audience string, t token) error {
	const node, reply, id = "$cbs", "onward-reply", "1"
	receiver, err := session.NewReceiver(ctx, node, &amqp.ReceiverOptions{
		TargetAddress: reply, Credit: 1,
		SettlementMode: amqp.ReceiverSettleModeFirst.Ptr(), RequestedSenderSettleMode: amqp.SenderSettleModeSettled.Ptr(),
	})
	if err != nil {
		return err
	}
	sender, err := session.NewSender(ctx, node, nil)
	if err != nil {
		return err
	}
	to := reply
	question := &amqp.Message{
		Properties:            &amqp.MessageProperties{MessageID: id, ReplyTo: &to},
		ApplicationProperties: map[string]any{"operation": "put-token", "type": t.kind, "name": audience},
		Value:                 t.value,
	}
	if question.ApplicationProperties["expiration"] = "0"; !t.expires.IsZero() { // as Microsoft's clients have it
		question.ApplicationProperties["expiration"] = strconv.FormatInt(t.expires.Unix(), 10)
	}
	if err := sender.Send(ctx, question, nil); err != nil {
		return err
	}
	answer, err := receiver.Receive(ctx, nil)
	if err != nil {
		return err
	}
	status, _ := answer.ApplicationProperties["status-code"].(int32)
	if status >= 200 && status < 300 {
		return nil
	}
	text, _ := answer.ApplicationProperties["status-description"].(string)
	return &claimError{status, text}
}

// renewal is when the next token is due: half of its life before it ends.
func renewal(expires time.Time) time.Time {
	if expires.IsZero() {
		return time.Time{}
	}
	return time.Now().Add(max(time.Until(expires)/2, minRenewal))
}

// minRenewal is the least between two tokens of an entity.
const minRenewal = 250 * time.Millisecond

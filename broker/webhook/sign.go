package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/onwardhq/onward/outbox"
)

// CheckSecret says whether a secret can sign: whsec_ and 24 to 64 bytes in base64. Its error does not repeat it.
func CheckSecret(secret string) error {
	if _, err := parseSecret(secret); err != nil {
		return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "webhook secret", Detail: err.Error()}
	}
	return nil
}

// key is a secret of Standard Webhooks.
type key []byte

// parseSecret reads whsec_ and the key in base64. Its error does not repeat the secret.
func parseSecret(secret string) (key, error) {
	text, ok := strings.CutPrefix(secret, "whsec_")
	if !ok {
		return nil, errors.New("does not begin with whsec_")
	}
	k, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		k, err = base64.RawStdEncoding.DecodeString(text)
	}
	if err != nil {
		return nil, errors.New("is not base64 behind whsec_")
	}
	if len(k) < 24 || len(k) > 64 {
		return nil, fmt.Errorf("has %d bytes: want 24 to 64 (openssl rand -base64 32)", len(k))
	}
	return k, nil
}

// sign is the value of webhook-signature (Standard Webhooks 1.0, scheme v1): a signature by each key, the first of them
// first, over id, timestamp and body with dots between.
func sign(keys []key, id, timestamp string, body []byte) string {
	var b strings.Builder
	for i, k := range keys {
		mac := hmac.New(sha256.New, k)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return b.String()
}

package servicebus

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	"github.com/onwardhq/onward/outbox"
)

// Options are what Dial needs beside the address. The zero value is enough with a connection string.
type Options struct {
	// Credential gives tokens of Microsoft Entra ID, such as one of azidentity does; with servicebus://... it is needed, with a
	// connection string refused.
	Credential azcore.TokenCredential
	// Name is shown to the service as that of the client; empty: onward.
	Name string
	// TLS is the configuration of connections; nil: the system's.
	TLS *tls.Config
	// Endpoint is a host, or host:port, that is connected to in place of the namespace: a tunnel or a private address. The
	// namespace stays the one that TLS and tokens name.
	Endpoint string
	// Timeout is for one attempt to connect, and for one to open an entity; 0: 10 s.
	Timeout time.Duration
}

// address is where a namespace is, and how it is spoken to.
type address struct {
	host     string // of the namespace, with a port where one is written
	entity   string // that a connection string is for; empty: any
	key      *sharedKey
	token    string // a shared access signature made by somebody else
	emulator bool   // without TLS
}

// sharedKey signs tokens.
type sharedKey struct{ name, secret string }

// CheckAddress reports what is wrong with an address, without repeating its key.
func CheckAddress(address string) error {
	_, err := parseAddress(address)
	return err
}

// IsConnectionString reports whether an address has a key, or a signature, of its own.
func IsConnectionString(address string) bool { return strings.Contains(address, "=") }

// parseAddress reads servicebus://HOST or a connection string. No error repeats what may be secret.
func parseAddress(text string) (a address, err error) {
	if IsConnectionString(text) {
		return parseConnectionString(text)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return a, errors.New("the address is not a URL that can be read")
	case u.Scheme != "servicebus":
		return a, fmt.Errorf("scheme %.20q is not servicebus, and the address is no connection string", u.Scheme)
	case u.Hostname() == "":
		return a, errors.New("the address names no host: write servicebus://NAMESPACE.servicebus.windows.net")
	case u.User != nil:
		return a, errors.New("the address has a user: a key comes in a connection string")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return a, errors.New("the address has more than a host: topic_template names queue and topic")
	}
	return address{host: u.Host}, nil
}

// parseConnectionString reads Endpoint=sb://...;SharedAccessKeyName=...;SharedAccessKey=..., as the portal shows it.
func parseConnectionString(text string) (a address, err error) {
	var name, secret string
	for part := range strings.SplitSeq(text, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		setting, value, found := strings.Cut(part, "=")
		if !found {
			return a, errors.New("the connection string has a part without =")
		}
		switch strings.ToLower(setting) {
		case "endpoint":
			u, err := url.Parse(value)
			if err != nil || u.Scheme != "sb" || u.Hostname() == "" {
				return a, errors.New("the connection string's Endpoint is not sb://HOST")
			}
			a.host = u.Host
		case "sharedaccesskeyname":
			name = value
		case "sharedaccesskey":
			secret = value
		case "sharedaccesssignature":
			a.token = value
		case "entitypath":
			a.entity = value
		case "usedevelopmentemulator":
			if a.emulator, err = strconv.ParseBool(value); err != nil {
				return a, errors.New("the connection string's UseDevelopmentEmulator is neither true nor false")
			}
		default:
			return a, fmt.Errorf("the connection string has a part %.40q: known are Endpoint, SharedAccessKeyName, SharedAccessKey, SharedAccessSignature, EntityPath, UseDevelopmentEmulator", setting)
		}
	}
	switch {
	case a.host == "":
		return a, errors.New("the connection string has no Endpoint")
	case a.token != "" && secret != "":
		return a, errors.New("the connection string has SharedAccessKey and SharedAccessSignature: one of them")
	case a.token == "" && (name == "" || secret == ""):
		return a, errors.New("the connection string has no SharedAccessKeyName and SharedAccessKey, and no SharedAccessSignature either")
	case secret != "":
		a.key = &sharedKey{name, secret}
	}
	return a, nil
}

// newDialer checks address and options.
func newDialer(text string, o Options) (dialer, error) {
	var faults []string
	a, err := parseAddress(text)
	if err != nil {
		faults = append(faults, err.Error())
	} else if hasKey := a.key != nil || a.token != ""; hasKey == (o.Credential != nil) {
		fault := "servicebus://... needs Options.Credential, which gives tokens"
		if hasKey {
			fault = "the connection string has a key, and Options.Credential is set: one of them"
		}
		faults = append(faults, fault)
	}
	if o.Timeout < 0 {
		faults = append(faults, "Timeout must be longer than 0")
	}
	if faults != nil {
		return dialer{}, &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: "servicebus address", Detail: strings.Join(faults, "; "),
			Hint: "write the connection string of the portal (Shared access policies), or servicebus://NAMESPACE.servicebus.windows.net with a credential",
		}
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Name == "" {
		o.Name = "onward"
	}
	return dialer{address: a, options: o}, nil
}

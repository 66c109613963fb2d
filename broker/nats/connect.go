package nats

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/outbox"
)

// Options are what Connect and Dial need beside the address. The zero value connects without credentials.
type Options struct {
	// Name is shown by the server among its connections; empty: onward.
	Name string
	// CredsFile is a file with a user's JWT and seed; NKeyFile one with a seed alone.
	CredsFile, NKeyFile string
	// User, Password, Token are taken from the address where they stand in it: nats://user:password@host, nats://token@host.
	User, Password, Token string
	// TLS is the configuration of a connection with TLS; nil: the system's, where the server asks for TLS.
	TLS *tls.Config
	// Timeout is for one attempt to connect; 0: 5 s.
	Timeout time.Duration
	// More are applied last.
	More []natsgo.Option
}

// Connect opens a connection that is fit for a publisher, and returns at once: it goes on connecting in the background,
// for ever, and never keeps messages for later. The caller closes it.
//
// The address is one or more URLs separated by commas, for example nats://a:4222,nats://b:4222; the schemes are nats,
// tls, ws and wss.
func Connect(address string, o Options) (*natsgo.Conn, error) {
	if err := checkAddress(address); err != nil {
		return nil, err
	}
	options, err := o.options()
	if err != nil {
		return nil, connectFault(address, err)
	}
	nc, err := natsgo.Connect(address, options...)
	if err != nil {
		return nil, connectFault(address, err)
	}
	return nc, nil
}

func connectFault(address string, cause error) error {
	return &outbox.Error{
		Code: outbox.ErrConfigInvalid.Code, Op: "connect to " + strings.Join(redacted(strings.Split(address, ",")), ","), Err: cause,
		Hint: "check the address, the credentials and the TLS settings",
	}
}

func (o Options) options() ([]natsgo.Option, error) {
	name, timeout := o.Name, o.Timeout
	if name == "" {
		name = "onward"
	}
	if timeout == 0 {
		timeout = 5 * time.Second
	}
	all := []natsgo.Option{
		natsgo.Name(name), natsgo.Timeout(timeout),
		natsgo.RetryOnFailedConnect(true), natsgo.MaxReconnects(-1), natsgo.IgnoreAuthErrorAbort(),
		natsgo.ReconnectWait(250 * time.Millisecond), natsgo.ReconnectJitter(100*time.Millisecond, 500*time.Millisecond),
		natsgo.ReconnectBufSize(-1),
		// a socket that takes nothing, and a peer that says nothing, are noticed within seconds and not minutes
		natsgo.FlusherTimeout(10 * time.Second), natsgo.ReconnectOnFlusherError(),
		natsgo.PingInterval(10 * time.Second), natsgo.MaxPingsOutstanding(2),
		natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {}), // the default one writes to stderr
	}
	if o.CredsFile != "" {
		all = append(all, natsgo.UserCredentials(o.CredsFile))
	}
	if o.NKeyFile != "" {
		key, err := natsgo.NkeyOptionFromSeed(o.NKeyFile)
		if err != nil {
			return nil, err
		}
		all = append(all, key)
	}
	if o.User != "" {
		all = append(all, natsgo.UserInfo(o.User, o.Password))
	}
	if o.Token != "" {
		all = append(all, natsgo.Token(o.Token))
	}
	if o.TLS != nil {
		all = append(all, natsgo.Secure(o.TLS))
	}
	return append(all, o.More...), nil
}

// checkAddress refuses what nats.go would read as something else.
func checkAddress(address string) error {
	for _, one := range strings.Split(address, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil { // its text repeats the password
			return connectFault("", fmt.Errorf("the address is no URL"))
		}
		switch {
		case u.Scheme != "nats" && u.Scheme != "tls" && u.Scheme != "ws" && u.Scheme != "wss":
			return connectFault(address, fmt.Errorf("scheme %q is none of nats, tls, ws, wss", u.Scheme))
		case u.Hostname() == "":
			return connectFault(address, fmt.Errorf("the host is missing"))
		case u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/":
			return connectFault(address, fmt.Errorf("a path or query is not taken: settings go beside the address"))
		}
	}
	return nil
}

// redacted are addresses without passwords and tokens.
func redacted(addresses []string) []string {
	out := make([]string, len(addresses))
	for i, a := range addresses {
		u, err := url.Parse(strings.TrimSpace(a))
		if err != nil {
			out[i] = "(no URL)"
			continue
		}
		u.User = nil
		out[i] = u.String()
	}
	return out
}

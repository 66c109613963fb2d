package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/outbox"
)

// Options are what Dial needs beside the address. The zero value is enough for most servers.
type Options struct {
	// Name is shown by the server among its connections; empty: onward.
	Name string
	// TLS is the configuration of an amqps connection; nil: the system's, with the address's parameters cacertfile, certfile,
	// keyfile and server_name_indication.
	TLS *tls.Config
	// Timeout is for one attempt to connect, with the handshake; 0: 5 s.
	Timeout time.Duration
	// Heartbeat is how often both sides say that they live, from 1 s; a server that says nothing for three is lost. 0: 10 s.
	Heartbeat time.Duration
}

// writeTimeout is how long a server may take nothing from its socket.
const writeTimeout = 10 * time.Second

var errConnecting = errors.New("rabbitmq: connecting")

// dialer opens connections to one of several addresses.
type dialer struct {
	urls    []string
	options Options
}

// newDialer refuses what the client would read as something else, and never repeats a password.
func newDialer(addresses string, o Options) (dialer, error) {
	d := dialer{options: o}
	if d.options.Name == "" {
		d.options.Name = "onward"
	}
	if d.options.Timeout == 0 {
		d.options.Timeout = 5 * time.Second
	}
	if d.options.Heartbeat == 0 {
		d.options.Heartbeat = 10 * time.Second
	}
	var faults []string
	for _, one := range strings.Split(addresses, ",") {
		one = strings.TrimSpace(one)
		if fault := checkURL(one); fault != "" {
			faults = append(faults, fault)
		}
		d.urls = append(d.urls, one)
	}
	if d.options.Timeout < 0 || d.options.Heartbeat < time.Second {
		faults = append(faults, "Timeout must be longer than 0, Heartbeat at least 1s")
	}
	if faults == nil {
		return d, nil
	}
	return d, &outbox.Error{
		Code: outbox.ErrConfigInvalid.Code, Op: "rabbitmq address", Detail: strings.Join(faults, "; "),
		Hint: "write amqp://user:password@host:5672/vhost, special characters as %40 and the like; several with commas between",
	}
}

// CheckURL reports what is wrong with one address, without repeating its password.
func CheckURL(address string) error {
	if fault := checkURL(address); fault != "" {
		return errors.New(fault)
	}
	return nil
}

func checkURL(address string) string {
	u, err := url.Parse(address)
	if err != nil { // its text repeats the password
		return "the address is not a URL that can be read: are special characters in the password written as %40 and the like?"
	}
	switch {
	case u.Scheme != "amqp" && u.Scheme != "amqps":
		return fmt.Sprintf("scheme %.20q is none of amqp, amqps", u.Scheme)
	case u.Hostname() == "":
		return "the address names no host: write " + u.Scheme + "://host"
	case u.Fragment != "":
		return "the address has a fragment: write a # in a password as %23"
	}
	if _, err := amqp.ParseURI(address); err != nil {
		return "the address has a port, virtual host or parameter that cannot be read"
	}
	return ""
}

// places are the addresses for people, without users and passwords.
func (d dialer) places() string {
	var all []string
	for _, one := range d.urls {
		if u, err := url.Parse(one); err == nil {
			all = append(all, u.Scheme+"://"+u.Host+u.EscapedPath())
		}
	}
	return strings.Join(all, ", ")
}

// connect opens the n-th try's connection. ctx ends the attempt.
func (d dialer) connect(ctx context.Context, n int) (*amqp.Connection, net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.options.Timeout)
	defer cancel()
	var raw net.Conn
	spare := func() bool { return true } // ends the watch over the handshake
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(d.options.Name)
	c, err := amqp.DialConfig(d.urls[n%len(d.urls)], amqp.Config{
		Heartbeat: d.options.Heartbeat, TLSClientConfig: d.options.TLS, Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			deadline, _ := ctx.Deadline()
			raw = conn
			spare = context.AfterFunc(ctx, func() { _ = conn.Close() })
			return socket{conn}, conn.SetDeadline(deadline)
		},
	})
	if err == nil && !spare() {
		err = context.Cause(ctx)
	}
	if err != nil {
		if raw != nil {
			_ = raw.Close()
		}
		return nil, nil, err
	}
	return c, raw, nil
}

// socket gives up a write that the server does not take.
type socket struct{ net.Conn }

func (s socket) Write(b []byte) (int, error) {
	if err := s.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return s.Conn.Write(b)
}

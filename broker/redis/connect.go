package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/onwardhq/onward/outbox"
)

// Options are what Dial needs beside the address. The zero value is enough for most servers.
type Options struct {
	// Name is shown by the server among its clients, without blanks; empty: onward.
	Name string
	// TLS is the configuration of a rediss connection; nil: the system's. Without a ServerName it is for the address's host.
	TLS *tls.Config
	// Timeout is for one attempt to connect, with the login; 0: 5 s.
	Timeout time.Duration
}

// redialAfter is when a lost connection is made again, at the earliest.
const redialAfter = 250 * time.Millisecond

// usualBulk is the server's default of proto-max-bulk-len.
const usualBulk = 512 << 20

var (
	errConnecting = errors.New("redis: connecting")
	errLost       = errors.New("redis: the connection was lost")
)

// dialer opens connections.
type dialer struct {
	options redis.Options // a template: each connection has a copy
	place   string        // for people, without user and password
	name    string
	waitAOF bool
}

func newDialer(address string, o Options, c Config) (dialer, error) {
	err := CheckURL(address)
	if err == nil && o.Timeout < 0 {
		err = errors.New("Timeout must be longer than 0") //nolint:staticcheck // the name of the field
	}
	if err != nil {
		return dialer{}, &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: "redis address", Detail: err.Error(),
			Hint: "write redis://user:password@host:6379/0, special characters as %40 and the like",
		}
	}
	opt, _ := redis.ParseURL(address) // checked
	u, _ := url.Parse(address)
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.TLS != nil && opt.TLSConfig != nil {
		opt.TLSConfig = o.TLS.Clone()
		if opt.TLSConfig.ServerName == "" {
			opt.TLSConfig.ServerName = u.Hostname()
		}
	}
	name := strings.Join(strings.Fields(o.Name), "-")
	if name == "" {
		name = "onward"
	}
	opt.Protocol = 2
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	opt.MaxRetries, opt.DialerRetries = -1, 1 // what becomes of a message is for the relay to decide
	opt.PoolSize = 1
	opt.DialTimeout, opt.PoolTimeout = o.Timeout, o.Timeout
	opt.ReadTimeout, opt.WriteTimeout, opt.ContextTimeoutEnabled = c.AckTimeout, c.AckTimeout, true
	return dialer{options: *opt, place: u.Scheme + "://" + u.Host + u.EscapedPath(), name: name, waitAOF: c.WaitAOF}, nil
}

// CheckURL reports what is wrong with an address, without repeating its password.
func CheckURL(address string) error {
	u, err := url.Parse(address)
	if err != nil { // its text repeats the password
		return errors.New("the address is not a URL that can be read: are special characters in the password written as %40 and the like?")
	}
	switch {
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return fmt.Errorf("scheme %.20q is none of redis, rediss", u.Scheme)
	case u.Hostname() == "":
		return fmt.Errorf("the address names no host: write %s://host", u.Scheme)
	case strings.Contains(u.Host, ","):
		return errors.New("the address names several hosts: name one, or what leads to the master")
	case u.Fragment != "":
		return errors.New("the address has a fragment: write a # in a password as %23")
	case u.RawQuery != "":
		return errors.New("the address has parameters: there are none")
	}
	if _, err := redis.ParseURL(address); err != nil {
		return errors.New("the address has a port or a database that cannot be read: write redis://host:6379/0")
	}
	return nil
}

// link is one connection.
type link struct {
	client *redis.Client
	conn   *redis.Conn
	socket *socket
	limit  int // proto-max-bulk-len; 0: not known
	gone   chan struct{}
	once   sync.Once
	inUse  sync.Mutex // of conn, which must not be closed under a round
}

// drop gives the connection up; whoever waits for the server on it gets an error.
func (l *link) drop() {
	l.once.Do(func() {
		_ = l.socket.Close()
		close(l.gone)
	})
}

// free closes what is left of a connection.
func (l *link) free() {
	l.drop()
	l.inUse.Lock()
	defer l.inUse.Unlock()
	_ = l.conn.Close()
	_ = l.client.Close()
}

// socket counts what was written: where that is nothing, no message went out.
type socket struct {
	net.Conn
	written atomic.Int64
}

func (s *socket) Write(b []byte) (int, error) {
	s.written.Add(int64(len(b))) // before: what fails may have gone out in part
	return s.Conn.Write(b)
}

// open makes a connection that may publish, or says why it may not. ctx ends the attempt.
func (d dialer) open(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, d.options.DialTimeout)
	defer cancel()
	raw, err := d.reach(ctx)
	if err != nil {
		return nil, err
	}
	l := &link{socket: &socket{Conn: raw}, gone: make(chan struct{})}
	spent := atomic.Bool{}
	o := d.options
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if spent.Swap(true) { // go-redis would make another in place of a lost one, and nobody would know
			return nil, errLost
		}
		return l.socket, nil
	}
	l.client = redis.NewClient(&o)
	l.conn = l.client.Conn()
	spare := context.AfterFunc(ctx, l.drop)
	err = d.greet(ctx, l)
	if !spare() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.free()
		return nil, err
	}
	return l, nil
}

// reach opens the socket. go-redis is handed it, because it would write what fails into the log of the process.
func (d dialer) reach(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.options.Addr)
	if err != nil || d.options.TLSConfig == nil {
		return conn, err
	}
	t := tls.Client(conn, d.options.TLSConfig)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return t, nil
}

// greet asks the server what must be known of it. What the relay's user may not ask is taken as usual.
func (d dialer) greet(ctx context.Context, l *link) error {
	if err := l.conn.Ping(ctx).Err(); err != nil {
		return err
	}
	if err := l.conn.ClientSetName(ctx, d.name).Err(); err != nil && !isReply(err) {
		return err
	}
	info, err := l.conn.Info(ctx, "server").Result()
	if err != nil && !isReply(err) {
		return err
	}
	if strings.Contains(info, "redis_mode:cluster") {
		return errCluster
	}
	if d.waitAOF {
		if err := canWaitAOF(info); err != nil {
			return err
		}
	}
	settings, err := l.conn.ConfigGet(ctx, "proto-max-bulk-len").Result()
	if err != nil && !isReply(err) {
		return err
	}
	l.limit, _ = strconv.Atoi(settings["proto-max-bulk-len"])
	return nil
}

// canWaitAOF refuses a server that does not know WAITAOF.
func canWaitAOF(info string) error {
	_, version, found := strings.Cut(info, "redis_version:")
	version, _, _ = strings.Cut(version, "\r")
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); !found || n != 2 {
		return &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: "redis publisher", Detail: "WaitAOF (wait_aof) needs Redis 7.2, and the server does not say which it is",
			Hint: "let the relay's user run INFO, or leave wait_aof out and set appendfsync always at the server",
		}
	}
	if major > 7 || major == 7 && minor >= 2 {
		return nil
	}
	return &outbox.Error{
		Code: outbox.ErrConfigInvalid.Code, Op: "redis publisher",
		Detail: "WaitAOF (wait_aof) needs Redis 7.2, and the server is " + version + ", which has no command WAITAOF",
		Hint:   "leave wait_aof out and set appendonly yes and appendfsync always at the server: then each answer comes after its fsync",
	}
}

// probe asks over a connection of its own whether the server takes writes. A script that says so in its first line is refused
// before it runs where a write would be: no memory, a replica, a disk that failed. It writes nothing.
func (d dialer) probe(ctx context.Context) error {
	l, err := d.open(ctx)
	if err != nil {
		return err
	}
	defer l.free()
	err = l.conn.Eval(ctx, "#!lua\nreturn 1", nil).Err()
	if s := judge(err); isReply(err) && (s == refused || s == permissionDenied) {
		return nil // Redis 6 cannot read the first line; a user may have XADD and no EVAL
	}
	return err
}

// keep is the goroutine that has a connection, and another one when that is lost.
func (p *Publisher) keep() {
	for p.flights.Stopped().Err() == nil {
		l, err := p.dial.open(p.flights.Stopped())
		if err == nil {
			p.mu.Lock()
			p.link, p.fault, p.limit = l, nil, l.limit
			p.mu.Unlock()
			select {
			case <-l.gone:
			case <-p.flights.Stopped().Done():
			}
			l.free()
			err = errLost
		}
		p.mu.Lock()
		p.link, p.fault = nil, err
		p.mu.Unlock()
		select {
		case <-time.After(redialAfter + rand.N(redialAfter)):
		case <-p.flights.Stopped().Done():
		}
	}
}

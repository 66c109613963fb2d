package servicebus

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/go-amqp"
)

const (
	redialAfter  = 250 * time.Millisecond // when a lost connection is made again, at the earliest
	writeTimeout = 10 * time.Second       // for what the service does not take from its socket
	closeTimeout = time.Second            // for a goodbye
)

var (
	errConnecting = errors.New("servicebus: connecting")
	errLost       = errors.New("servicebus: the connection was lost")
)

// dialer opens connections.
type dialer struct {
	address address
	options Options
}

// link is one connection.
type link struct {
	conn   *amqp.Conn
	socket *socket
	claims chan struct{} // full while somebody asks $cbs
	once   sync.Once
}

// drop breaks the connection: whoever waits for the service on it gets an error.
func (l *link) drop() { _ = l.socket.Close() }

// free says goodbye and waits until nothing is left of the connection.
func (l *link) free() {
	l.once.Do(func() {
		late := time.AfterFunc(closeTimeout, l.drop)
		_ = l.conn.Close()
		late.Stop()
		l.drop()
	})
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

// host is that of the namespace, without a port.
func (d dialer) host() string {
	if host, _, err := net.SplitHostPort(d.address.host); err == nil {
		return host
	}
	return d.address.host
}

// place is where connections go: host and port.
func (d dialer) place() string {
	at, port := d.options.Endpoint, "5671"
	if at == "" {
		at = d.address.host
	}
	if d.address.emulator {
		port = "5672"
	}
	if _, _, err := net.SplitHostPort(at); err != nil {
		at = net.JoinHostPort(at, port)
	}
	return at
}

// open makes a connection. ctx ends the attempt.
func (d dialer) open(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, d.options.Timeout)
	defer cancel()
	raw, err := d.reach(ctx)
	if err != nil {
		return nil, err
	}
	l := &link{socket: &socket{Conn: raw}, claims: make(chan struct{}, 1)}
	l.conn, err = amqp.NewConn(ctx, l.socket, &amqp.ConnOptions{
		SASLType: amqp.SASLTypeAnonymous(), HostName: d.host(), WriteTimeout: writeTimeout,
		Properties: map[string]any{"product": "onward", "user-agent": d.options.Name},
	})
	if err != nil {
		l.drop()
		return nil, err
	}
	return l, nil
}

// reach opens the socket.
func (d dialer) reach(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.place())
	if err != nil || d.address.emulator {
		return conn, err
	}
	c := d.options.TLS.Clone()
	if c == nil {
		c = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if c.ServerName == "" {
		c.ServerName = d.host()
	}
	t := tls.Client(conn, c)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return t, nil
}

// attach opens an entity for sending, with a token of its own, and says when that ends. The session is the entity's alone, so
// that the service ends no other with it.
func (l *link) attach(ctx context.Context, d dialer, entity string) (*amqp.Session, *amqp.Sender, time.Time, error) {
	expires, err := l.claim(ctx, d, entity)
	if err != nil {
		return nil, nil, expires, err
	}
	session, err := l.conn.NewSession(ctx, nil)
	if err != nil {
		return nil, nil, expires, err
	}
	sender, err := session.NewSender(ctx, entity, &amqp.SenderOptions{
		SettlementMode: amqp.SenderSettleModeMixed.Ptr(), RequestedReceiverSettleMode: amqp.ReceiverSettleModeFirst.Ptr(),
	})
	if err != nil {
		hangUp(session)
		return nil, nil, expires, err
	}
	return session, sender, expires, nil
}

// hangUp ends a session, and what was on its way there.
func hangUp(session *amqp.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = session.Close(ctx)
}

// probe asks over a connection of its own whether the entity takes links, or with "" whether the namespace takes the token, and
// says how large a message of the entity may be. It sends nothing.
func (d dialer) probe(ctx context.Context, entity string) (limit uint64, err error) {
	l, err := d.open(ctx)
	if err != nil {
		return 0, err
	}
	defer l.free()
	ctx, cancel := context.WithTimeout(ctx, d.options.Timeout)
	defer cancel()
	if entity == "" {
		_, err = l.claim(ctx, d, d.address.entity)
		return 0, err
	}
	session, sender, _, err := l.attach(ctx, d, entity)
	if err != nil {
		return 0, err
	}
	defer hangUp(session)
	return sender.MaxMessageSize(), nil
}

// keep is the goroutine that has a connection, and another one when that is lost.
func (p *Publisher) keep() {
	for p.stop.Err() == nil {
		l, err := p.dial.open(p.stop)
		if err == nil {
			p.connected(l, nil)
			select {
			case <-l.conn.Done():
				err = errors.Join(errLost, l.conn.Err())
			case <-p.stop.Done():
				err = errLost
			}
		}
		p.connected(nil, err)
		if l != nil {
			l.free()
		}
		select {
		case <-time.After(redialAfter + rand.N(redialAfter)):
		case <-p.stop.Done():
		}
	}
}

// connected notes the connection of this moment, and opens the one entity that all messages go to.
func (p *Publisher) connected(l *link, fault error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link, p.fault = l, fault
	if l != nil && p.fixed != "" {
		signal(p.laneOf(p.fixed).wake)
	}
}

package kafka

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// proxy stands between a publisher and the broker, and breaks what goes through it.
type proxy struct {
	tb       testing.TB
	to       string
	listener net.Listener

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	down   bool          // new connections are closed at once
	deaf   bool          // what the broker says is dropped
	frozen chan struct{} // closed when it thaws; nil: not frozen
	group  sync.WaitGroup
}

func newProxy(tb testing.TB, to string) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	x := &proxy{tb: tb, to: to, listener: l, conns: map[net.Conn]struct{}{}}
	x.group.Go(x.accept)
	tb.Cleanup(func() {
		x.thaw()
		_ = l.Close()
		x.cut()
		x.group.Wait()
	})
	return x
}

// through makes a client connect through the proxy, whatever addresses the brokers advertise.
func (x *proxy) through() kgo.Opt {
	return kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, x.listener.Addr().String())
	})
}

func (x *proxy) accept() {
	for {
		client, err := x.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.DialTimeout("tcp", x.to, 5*time.Second)
		x.mu.Lock()
		if err != nil || x.down {
			x.mu.Unlock()
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		x.conns[client], x.conns[server] = struct{}{}, struct{}{}
		x.mu.Unlock()
		x.group.Go(func() { x.copy(server, client, true) })
		x.group.Go(func() { x.copy(client, server, false) })
	}
}

func (x *proxy) copy(to, from net.Conn, toBroker bool) {
	defer func() {
		x.mu.Lock()
		delete(x.conns, to)
		delete(x.conns, from)
		x.mu.Unlock()
		_ = to.Close()
		_ = from.Close()
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		x.mu.Lock()
		frozen, drop := x.frozen, x.deaf && !toBroker
		x.mu.Unlock()
		if frozen != nil {
			<-frozen
		}
		if drop {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// stop breaks all connections and takes no new ones; start ends it.
func (x *proxy) stop() {
	x.mu.Lock()
	x.down = true
	x.mu.Unlock()
	x.cut()
}

func (x *proxy) start() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.down = false
}

// cut breaks all connections once; new ones are as they should be.
func (x *proxy) cut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.deaf = false
	for c := range x.conns {
		_ = c.Close()
	}
}

// deafen drops what the broker says from now on, until the connections are cut.
func (x *proxy) deafen() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.deaf = true
}

// freeze stops what goes through; thaw lets it go on.
func (x *proxy) freeze() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.frozen == nil {
		x.frozen = make(chan struct{})
	}
}

func (x *proxy) thaw() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.frozen != nil {
		close(x.frozen)
		x.frozen = nil
	}
}

package brokertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// FreePort is a port of this machine on which nothing listens now, below the range of outgoing connections.
func FreePort() int {
	for {
		port := 20000 + rand.IntN(12000) //nolint:gosec // any will do
		l, err := listen(fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			_ = l.Close()
			return port
		}
	}
}

func listen(address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
}

// Proxy stands between a publisher and its server, and is stopped, started, frozen and thawed: Harness.Stop, Start and Freeze of any
// broker that is reached over TCP. It is safe for concurrent use.
type Proxy struct {
	tb       testing.TB
	address  string
	server   string
	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
	frozen   chan struct{} // closed when it thaws; nil: it flows
	group    sync.WaitGroup
}

// NewProxy makes a proxy of the server at this host and port. It ends with the test.
func NewProxy(tb testing.TB, server string) *Proxy {
	tb.Helper()
	x := &Proxy{tb: tb, address: fmt.Sprint("127.0.0.1:", FreePort()), server: server, conns: map[net.Conn]struct{}{}}
	x.Start()
	tb.Cleanup(func() {
		x.Thaw()
		x.Stop()
		x.group.Wait()
	})
	return x
}

// Address is where a publisher finds it: host and port, which stay.
func (x *Proxy) Address() string { return x.address }

// Start takes connections, after a Stop again at the same address.
func (x *Proxy) Start() {
	x.tb.Helper()
	l, err := listen(x.address)
	if err != nil {
		x.tb.Fatal(err)
	}
	x.mu.Lock()
	x.listener = l
	x.mu.Unlock()
	x.group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", x.server)
			if err != nil {
				_ = c.Close()
				continue
			}
			if !x.keep(c, s) {
				return
			}
			x.group.Go(func() { x.copy(s, c) })
			x.group.Go(func() { x.copy(c, s) })
		}
	})
}

// keep remembers a pair, or ends it where the proxy was stopped meanwhile.
func (x *Proxy) keep(pair ...net.Conn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range pair {
		if x.listener == nil {
			_ = c.Close()
		} else {
			x.conns[c] = struct{}{}
		}
	}
	return x.listener != nil
}

func (x *Proxy) copy(to, from net.Conn) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		x.mu.Lock()
		frozen := x.frozen
		x.mu.Unlock()
		if frozen != nil {
			<-frozen
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				x.tb.Logf("proxy: %v", err)
			}
			break
		}
	}
	_ = from.Close()
	_ = to.Close()
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.conns, from)
	delete(x.conns, to)
}

// Stop breaks what there is, and takes nothing new.
func (x *Proxy) Stop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.listener != nil {
		_ = x.listener.Close()
		x.listener = nil
	}
	for c := range x.conns {
		_ = c.Close()
	}
}

// Freeze lets nothing through, while connections stay; Thaw ends it.
func (x *Proxy) Freeze() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.frozen = make(chan struct{})
}

// Thaw lets through what waited, and what comes.
func (x *Proxy) Thaw() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.frozen != nil {
		close(x.frozen)
		x.frozen = nil
	}
}

package redis

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// proxy stands between a publisher and the server, and is cut, frozen and opened again.
type proxy struct {
	tb       testing.TB
	port     int
	server   string
	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
	frozen   chan struct{} // closed when it thaws; nil: it flows
	group    sync.WaitGroup
}

// newProxy makes one, and returns the publisher's address of it.
func newProxy(tb testing.TB, url string) (*proxy, string) {
	tb.Helper()
	x := &proxy{tb: tb, port: freePort(), server: strings.TrimPrefix(url, "redis://"), conns: map[net.Conn]struct{}{}}
	x.start()
	tb.Cleanup(func() {
		x.thaw()
		x.stop()
		x.group.Wait()
	})
	return x, fmt.Sprintf("redis://127.0.0.1:%d", x.port)
}

func (x *proxy) start() {
	x.tb.Helper()
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", x.port))
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
			s, err := net.Dial("tcp", x.server)
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
func (x *proxy) keep(pair ...net.Conn) bool {
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

func (x *proxy) copy(to, from net.Conn) {
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

// stop breaks what there is, and takes nothing new.
func (x *proxy) stop() {
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

func (x *proxy) freeze() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.frozen = make(chan struct{})
}

func (x *proxy) thaw() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.frozen != nil {
		close(x.frozen)
		x.frozen = nil
	}
}

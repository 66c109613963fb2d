package harness

import (
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
)

// Proxy stands between relays and a server. It loses answers: what a server says to a client after LoseAnswers does not
// get through, and the connection ends.
type Proxy struct {
	URL    string
	server atomic.Value // of string: host and port
	listen net.Listener
	lost   atomic.Int64
	mu     sync.Mutex
	conns  map[*proxied]bool
	group  sync.WaitGroup
}

type proxied struct {
	client, server net.Conn
	deaf           atomic.Bool
}

// NewProxy makes one before the server of a URL.
func NewProxy(ctx context.Context, server string) (*Proxy, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	p := &Proxy{conns: map[*proxied]bool{}}
	p.server.Store(u.Host)
	if p.listen, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	u.Host = p.listen.Addr().String()
	p.URL = u.String()
	p.group.Go(p.accept)
	return p, nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			return
		}
		server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.server.Load().(string)) //nolint:forcetypeassert // nothing else is stored
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &proxied{client: client, server: server}
		p.mu.Lock()
		p.conns[c] = true
		p.mu.Unlock()
		p.group.Go(func() { p.copy(c, client, server, false) })
		p.group.Go(func() { p.copy(c, server, client, true) })
	}
}

// copy passes bytes on until one side ends, or an answer was lost.
func (p *Proxy) copy(c *proxied, from, to net.Conn, answers bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			break
		}
		if answers && c.deaf.Load() {
			p.lost.Add(1)
			break
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			break
		}
	}
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	_ = c.client.Close()
	_ = c.server.Close()
}

// LoseAnswers breaks every connection at the next answer, which does not get through. New connections are sound.
func (p *Proxy) LoseAnswers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.deaf.Store(true)
	}
}

// Lead leads new connections to the server of this URL; those that there are stay where they are.
func (p *Proxy) Lead(server string) error {
	u, err := url.Parse(server)
	if err != nil {
		return err
	}
	p.server.Store(u.Host)
	return nil
}

// Switch ends every connection; new ones lead to the server of this URL.
func (p *Proxy) Switch(server string) error {
	if err := p.Lead(server); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.client.Close()
		_ = c.server.Close()
	}
	return nil
}

// Lost is how many times answers were lost.
func (p *Proxy) Lost() int { return int(p.lost.Load()) }

// Close ends all connections.
func (p *Proxy) Close() {
	_ = p.listen.Close()
	p.mu.Lock()
	for c := range p.conns {
		_ = c.client.Close()
		_ = c.server.Close()
	}
	p.mu.Unlock()
	p.group.Wait()
}

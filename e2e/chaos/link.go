package chaos

import (
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Link is a TCP proxy on the way of one process to one server. Its faults may be set at any time, and hold for the connections
// that there are, and, but for cuts and resets, for new ones. Safe for concurrent use.
type Link struct {
	URL     string // leads through the link
	server  string
	listen  net.Listener
	latency atomic.Int64 // of each direction, in nanoseconds
	sent    atomic.Pointer[func(b []byte) bool]
	mu      sync.Mutex
	wires   map[*wire]bool
	gate    chan struct{} // closed: open; else nothing gets through
	group   sync.WaitGroup
}

// wire is one connection through a link.
type wire struct {
	client, server *net.TCPConn
	left           [2]atomic.Int64 // bytes that still get through, by direction; negative: all
	once           sync.Once
	ended          chan struct{}
}

// The directions of a wire.
const (
	requests = iota
	answers
)

// NewLink makes a link to the server of a URL.
func NewLink(ctx context.Context, to string) (*Link, error) { return newLinkAt(ctx, to, "127.0.0.1:0") }

// newLinkAt is NewLink at an address that is known before.
func newLinkAt(ctx context.Context, to, at string) (*Link, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	l := &Link{server: u.Host, wires: map[*wire]bool{}, gate: make(chan struct{})}
	close(l.gate)
	if l.listen, err = (&net.ListenConfig{}).Listen(ctx, "tcp", at); err != nil {
		return nil, err
	}
	u.Host = l.listen.Addr().String()
	l.URL = u.String()
	l.group.Go(l.accept)
	return l, nil
}

func (l *Link) accept() {
	for {
		client, err := l.listen.Accept()
		if err != nil {
			return
		}
		server, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", l.server)
		if err != nil { // as if the server's machine refused
			reset(client.(*net.TCPConn))
			continue
		}
		w := &wire{client: client.(*net.TCPConn), server: server.(*net.TCPConn), ended: make(chan struct{})}
		w.left[requests].Store(-1)
		w.left[answers].Store(-1)
		l.mu.Lock()
		l.wires[w] = true
		l.mu.Unlock()
		l.group.Go(func() { l.carry(w, w.client, w.server, requests) })
		l.group.Go(func() { l.carry(w, w.server, w.client, answers) })
	}
}

// parcel is what was read at once.
type parcel struct {
	bytes []byte
	at    time.Time
}

// carry passes on what comes from one side, in time. A side that ends is noticed only once what it said before has got through:
// that is how a COMMIT arrives after its client has given up.
func (l *Link) carry(w *wire, from, to *net.TCPConn, direction int) {
	queue := make(chan parcel, 64)
	l.group.Go(func() {
		defer close(queue)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			if n > 0 {
				select {
				case queue <- parcel{b[:n], time.Now()}:
				case <-w.ended:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for p := range queue {
		if !l.pass(w, to, direction, p) {
			break
		}
	}
	w.end(false)
	l.mu.Lock()
	delete(l.wires, w)
	l.mu.Unlock()
}

// pass passes one parcel on, when it is time; false: the wire ends.
func (l *Link) pass(w *wire, to *net.TCPConn, direction int, p parcel) bool {
	if wait := time.Until(p.at.Add(time.Duration(l.latency.Load()))); wait > 0 {
		late := time.NewTimer(wait)
		defer late.Stop()
		select {
		case <-late.C:
		case <-w.ended:
			return false
		}
	}
	l.mu.Lock()
	gate := l.gate
	l.mu.Unlock()
	select {
	case <-gate:
	case <-w.ended:
		return false
	}
	if hook := l.sent.Load(); hook != nil && direction == requests && !(*hook)(p.bytes) {
		return false
	}
	b, cut := p.bytes, false
	if left := w.left[direction].Load(); left >= 0 {
		if cut = left < int64(len(b)); cut {
			b = b[:left]
		}
		w.left[direction].Store(left - int64(len(b)))
	}
	_, err := to.Write(b)
	return err == nil && !cut
}

// end closes both sides; hard: with a reset.
func (w *wire) end(hard bool) {
	w.once.Do(func() {
		close(w.ended)
		for _, side := range []*net.TCPConn{w.client, w.server} {
			if hard {
				reset(side)
			} else {
				_ = side.Close()
			}
		}
	})
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// Latency makes each direction this late; 0: as it is.
func (l *Link) Latency(d time.Duration) { l.latency.Store(int64(d)) }

// Hole lets nothing through until Fill.
func (l *Link) Hole() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.gate:
		l.gate = make(chan struct{})
	default: // there is one
	}
}

// Fill ends a hole: what was held back gets through.
func (l *Link) Fill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.gate:
	default:
		close(l.gate)
	}
}

// Reset resets every connection, and returns how many there were.
func (l *Link) Reset() int {
	all := l.all()
	for _, w := range all {
		w.end(true)
	}
	return len(all)
}

// Cut ends every connection after n more bytes of a direction; those that do not get that far while ctx lasts stay. It returns how
// many were cut.
func (l *Link) Cut(ctx context.Context, direction int, n int64) (cut int) {
	all := l.all()
	for _, w := range all {
		w.left[direction].Store(n)
	}
	for _, w := range all {
		select {
		case <-w.ended:
			cut++
		case <-ctx.Done():
			w.left[direction].Store(-1)
		}
	}
	return cut
}

// Sent has f told what clients send, just before it is passed on, until the next call; nil: nobody is told. Where f says false
// the connection ends instead.
func (l *Link) Sent(f func(b []byte) bool) {
	if f == nil {
		l.sent.Store(nil)
		return
	}
	l.sent.Store(&f)
}

func (l *Link) all() []*wire {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*wire, 0, len(l.wires))
	for w := range l.wires {
		all = append(all, w)
	}
	return all
}

// Heal takes every fault away.
func (l *Link) Heal() {
	l.Latency(0)
	l.Sent(nil)
	l.Fill()
}

// Close ends all connections.
func (l *Link) Close() {
	_ = l.listen.Close()
	for _, w := range l.all() {
		w.end(false)
	}
	l.group.Wait()
}

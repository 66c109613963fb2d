package nats

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	natsgo "github.com/nats-io/nats.go"
)

// wire is a connection of nats.go to a listener that speaks just enough of the protocol to hand out the headers that
// were sent.
type wire struct {
	mu   sync.Mutex
	nc   *natsgo.Conn
	sent chan []byte
}

var openWire = sync.OnceValues(func() (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{sent: make(chan []byte, 1)}
	go func() {
		defer func() { _ = l.Close() }()
		if c, err := l.Accept(); err == nil {
			w.listen(c)
		}
	}()
	w.nc, err = natsgo.Connect("nats://"+l.Addr().String(), natsgo.NoReconnect())
	if err == nil {
		theWire.Store(w)
	}
	return w, err
})

// theWire is the one that was opened, and that is closed after all tests.
var theWire atomic.Pointer[wire]

// listen answers CONNECT and PING, and passes headers on.
func (w *wire) listen(c net.Conn) {
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, `INFO {"headers":true,"max_payload":1048576}`+"\r\n")
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		if strings.HasPrefix(line, "PING") {
			_, _ = io.WriteString(c, "PONG\r\n")
		}
		var headerSize, size int
		if n, _ := fmt.Sscanf(line, "HPUB t %d %d", &headerSize, &size); n < 2 {
			continue
		}
		all := make([]byte, size+len("\r\n"))
		if _, err := io.ReadFull(r, all); err != nil {
			return
		}
		w.sent <- all[:headerSize]
	}
}

// decode sends a header through nats.go and reads it back as a consumer does.
func decode(tb testing.TB, header natsgo.Header) natsgo.Header {
	tb.Helper()
	got, err := natsgo.DecodeHeadersMsg(headerBytes(tb, header))
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

// headerBytes is a header as nats.go sends it.
func headerBytes(tb testing.TB, header natsgo.Header) []byte {
	tb.Helper()
	w, err := openWire()
	if err != nil {
		tb.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.nc.PublishMsg(&natsgo.Msg{Subject: "t", Header: header}); err != nil {
		tb.Fatal(err)
	}
	return <-w.sent
}

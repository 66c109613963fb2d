package webhook

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

var update = flag.Bool("update", false, "write the golden files")

// answering is the drive of answers by their status alone: others on either side of the message are taken.
func answering(s situation, arrives bool, statuses ...int) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		for _, status := range statuses {
			e := newEndpoint(t, false, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Onward-Key") != "at fault" {
					return
				}
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(status)
				_, _ = w.Write([]byte("because of this"))
			})
			p := e.publisher(Config{})
			rs := publish(t, p, message("a"), message("at fault"), message("b"))
			want(t, rs[0], taken)
			want(t, rs[1], s)
			want(t, rs[2], taken)
			if said := fmt.Sprint(rs[1].Err); s != taken && s != redirected && (!strings.Contains(said, fmt.Sprint(status)) || !strings.Contains(said, "because of this")) {
				t.Errorf("%d: the cause is %s", status, said)
			}
			if n := e.count(); arrives && n != 3 {
				t.Errorf("%d: %d requests arrived, want 3: one for each message", status, n)
			}
		}
	}
}

// drives brings about each situation on a server of net/http and checks the answer against the table.
var drives = [situations]func(t *testing.T){
	taken:          answering(taken, true, 200, 201, 202, 204, 206, 299),
	gone:           answering(gone, true, 410),
	tooLarge:       answering(tooLarge, true, 413, 431),
	forbidden:      answering(forbidden, true, 403),
	refused:        answering(refused, true, 400, 402, 404, 405, 406, 409, 412, 415, 422, 425, 451, 499),
	failed:         answering(failed, true, 500, 501, 505, 507, 599),
	unauthorized:   answering(unauthorized, true, 401, 407),
	redirected:     answering(redirected, true, 300, 301, 302, 303, 304, 307, 308),
	down:           answering(down, true, 502, 503),
	unknownThere:   answering(unknownThere, false, 504, 408), // a 408 may close the connection under the others
	throttled:      answering(throttled, true, 429),
	reservedHeader: refusing(reservedHeader, map[string]string{"host": "x"}, map[string]string{"Transfer-Encoding": "chunked"}, map[string]string{"AUTHORIZATION": "x"}),
	badHeader:      refusing(badHeader, map[string]string{"a": "b\r\nc: d"}, map[string]string{"a b": "c"}, map[string]string{"": "c"}, map[string]string{"a:b": "c"}, map[string]string{"ü": "c"}, map[string]string{"a": "\x7f"}),
	badText: func(t *testing.T) {
		e := newEndpoint(t, false, nil)
		m := message("")
		m.Record.Type = "\xff"
		want(t, publish(t, e.publisher(Config{Wire: broker.WireConfig{Format: broker.FormatStructured, Source: "/s"}}), m)[0], badText)
		if n := e.count(); n != 0 {
			t.Errorf("%d requests arrived", n)
		}
	},
	addressRefused: func(t *testing.T) {
		e := newEndpoint(t, false, nil)
		_, port, _ := strings.Cut(e.address, ":")
		for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0", "127.1.2.3"} {
			p := e.publisher(Config{URL: "http://" + host + ":" + port, AllowNetworks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
			want(t, publish(t, p, message(""))[0], addressRefused)
		}
		if n := e.count(); n != 0 {
			t.Errorf("%d requests arrived", n)
		}
	},
	notConnected: func(t *testing.T) {
		e := newEndpoint(t, true, nil)
		p := e.publisher(Config{})
		want(t, publish(t, p, message(""))[0], taken)
		want(t, publish(t, e.publisher(Config{URL: strings.Replace(e.url(), "127.0.0.1", "localhost", 1)}), message(""))[0], notConnected) // not in the certificate
		want(t, publish(t, e.publisher(Config{URL: "http://nobody.invalid/", Timeout: 2 * time.Second}), message(""))[0], notConnected)
		e.stop()
		for range 3 { // the first may meet the connection that was there
			r := publish(t, p, message(""))[0]
			if r.Outcome == broker.Uncertain {
				continue
			}
			want(t, r, notConnected)
		}
		want(t, publish(t, e.publisher(Config{}), message(""))[0], notConnected)
	},
	notSent: func(t *testing.T) {
		e := newEndpoint(t, false, nil)
		p := e.publisher(Config{Concurrency: 1})
		defer e.freeze()()
		ctx, cancel := context.WithCancel(t.Context())
		answers := start(ctx, p, messages(3)...)
		cancel()
		if r := wait(t, answers[0]); r.Outcome != broker.Uncertain && r.Outcome != broker.Unavailable {
			t.Errorf("the first, which was perhaps on its way: %+v", r)
		}
		want(t, wait(t, answers[1]), notSent)
		want(t, wait(t, answers[2]), notSent)
		want(t, wait(t, start(ctx, p, message(""))[0]), notSent)
	},
	closed: func(t *testing.T) {
		e := newEndpoint(t, false, nil)
		p := e.publisher(Config{Concurrency: 1})
		defer e.freeze()()
		answers := start(t.Context(), p, messages(2)...)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Close(ended); err != nil {
			t.Error(err)
		}
		if r := wait(t, answers[0]); r.Outcome != broker.Uncertain && r.Outcome != broker.Unavailable {
			t.Errorf("the first: %+v", r)
		}
		want(t, wait(t, answers[1]), closed)
		want(t, publish(t, p, message(""))[0], closed)
	},
	busy: func(t *testing.T) {
		first, block := make(chan struct{}), make(chan struct{})
		e := newEndpoint(t, false, func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Onward-Key") == "fast" {
				close(first)
				return
			}
			select {
			case <-block:
			case <-r.Context().Done():
			}
		})
		defer close(block)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		answers := start(ctx, e.publisher(Config{Concurrency: 2}), message("fast"), message("slow"), message("slower"), message("late"))
		want(t, wait(t, answers[0]), taken)
		want(t, wait(t, answers[1]), noAnswer)
		want(t, wait(t, answers[2]), noAnswer)
		want(t, wait(t, answers[3]), busy)
		<-first
	},
	connectionLost: func(t *testing.T) {
		for _, answer := range []string{"", "HTTP/1.1 200 OK\r\nContent-Le", "no HTTP at all\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*maxAnswer) + "\r\n\r\n"} {
			e := newEndpoint(t, false, func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = conn.Write([]byte(answer))
				_ = conn.Close()
			})
			want(t, publish(t, e.publisher(Config{}), message(""))[0], connectionLost)
			if n := e.count(); n != 1 {
				t.Errorf("%.20q: %d requests arrived, want 1: the transport repeats none by itself", answer, n)
			}
		}
	},
	noAnswer: func(t *testing.T) {
		e := newEndpoint(t, false, nil)
		defer e.freeze()()
		want(t, publish(t, e.publisher(Config{Timeout: 100 * time.Millisecond}), message(""))[0], noAnswer)
	},
	contextEnded: func(t *testing.T) {
		inside := make(chan struct{})
		e := newEndpoint(t, false, func(_ http.ResponseWriter, r *http.Request) {
			close(inside)
			<-r.Context().Done()
		})
		ctx, cancel := context.WithCancel(t.Context())
		answers := start(ctx, e.publisher(Config{}), message(""))
		<-inside
		cancel()
		want(t, wait(t, answers[0]), contextEnded)
	},
}

// refusing is the drive of headers that never go out.
func refusing(s situation, headers ...map[string]string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		e := newEndpoint(t, false, nil)
		p := e.publisher(Config{})
		for _, own := range headers {
			m := message("")
			m.Record.Headers = own
			want(t, publish(t, p, m)[0], s)
		}
		if n := e.count(); n != 0 {
			t.Errorf("%d requests arrived", n)
		}
	}
}

func TestEachSituationOnARealServer(t *testing.T) {
	t.Parallel()
	brokertest.RunTable(t, rows(), func(i int) func(*testing.T) { return drives[i] })
}

// The table of the documentation is the one that the publisher goes by.
func TestTheDocumentationHasTheTable(t *testing.T) {
	t.Parallel()
	brokertest.CheckTable(t, "../../docs/brokers/webhook.md", rows(), *update)
}

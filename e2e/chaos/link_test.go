package chaos

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// echo is a link to a server that says back what it is told, and a connection through it.
func echo(t *testing.T) (*Link, net.Conn) {
	t.Helper()
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	l, err := NewLink(t.Context(), "tcp://"+server.Addr().String()+"/path")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		_ = server.Close()
	})
	return l, dial(t, l)
}

func dial(t *testing.T, l *Link) net.Conn {
	t.Helper()
	address := strings.TrimSuffix(strings.TrimPrefix(l.URL, "tcp://"), "/path")
	c, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// says sends a text and wants it back.
func says(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	back := make([]byte, len(text))
	if _, err := io.ReadFull(c, back); err != nil || string(back) != text {
		t.Fatalf("got %q, %v, want %q", back, err, text)
	}
}

func TestALinkIsAsLateAsItIsTold(t *testing.T) {
	t.Parallel()
	l, c := echo(t)
	l.Latency(50 * time.Millisecond)
	start := time.Now()
	says(t, c, "hello")
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("there and back took %v, want 100ms", took)
	}
	l.Heal()
	says(t, c, "again")
}

func TestAResetEndsEveryConnectionOfALink(t *testing.T) {
	t.Parallel()
	l, c := echo(t)
	says(t, c, "hello")
	if n := l.Reset(); n != 1 {
		t.Errorf("%d connections were reset", n)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	says(t, dial(t, l), "hello")
}

func TestACutLetsSoManyBytesThrough(t *testing.T) {
	t.Parallel()
	l, c := echo(t)
	says(t, c, "hello")
	cut := make(chan int)
	go func() { cut <- l.Cut(t.Context(), answers, 7) }()
	for l.all()[0].left[answers].Load() != 7 {
		runtime.Gosched()
	}
	if _, err := io.WriteString(c, "0123456789"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); string(got) != "0123456" {
		t.Errorf("got %q, %v", got, err)
	}
	if n := <-cut; n != 1 {
		t.Errorf("%d connections were cut", n)
	}
	other := dial(t, l)
	says(t, other, "hello")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if n := l.Cut(over, answers, 3); n != 0 {
		t.Errorf("%d connections were cut before they had got that far", n)
	}
	says(t, other, "it was not to be")
}

// What was on its way gets through when the hole is filled, also of a client that has given up.
func TestNothingGetsThroughAHoleBeforeItIsFilled(t *testing.T) {
	t.Parallel()
	l, c := echo(t)
	says(t, c, "hello")
	l.Hole()
	heard := make(chan []byte, 10)
	l.Sent(func(b []byte) bool {
		heard <- bytes.Clone(b)
		return true
	})
	if _, err := io.WriteString(c, "commit"); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	other := dial(t, l)
	if _, err := io.WriteString(other, "early"); err != nil {
		t.Fatal(err)
	}
	_ = other.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := other.Read(make([]byte, 1)); n > 0 || err == nil || len(heard) > 0 {
		t.Errorf("something got through: %d bytes, %d parcels", n, len(heard))
	}
	l.Fill()
	got := string(<-heard) + string(<-heard)
	if got != "commitearly" && got != "earlycommit" {
		t.Errorf("what was on its way: %q", got)
	}
}

package watermill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

func rows() []brokertest.Row {
	rows := make([]brokertest.Row, len(verdicts))
	for i, v := range verdicts {
		rows[i] = brokertest.Row{Outcome: v.outcome, Code: v.code, Seen: v.seen, Means: v.means}
	}
	return rows
}

// want compares one answer with a situation's row of the table.
func want(tb testing.TB, r broker.Result, s situation) {
	tb.Helper()
	brokertest.Want(tb, r, rows()[s])
}

// saying is a situation that Config.Outcome brings about.
func saying(s situation) func(t *testing.T) {
	return func(t *testing.T) {
		b := newBench(t)
		cause := fmt.Errorf("sending: %w", errPoison)
		b.fail(cause)
		p := b.publisher(t, Config{Outcome: func(err error) broker.Outcome {
			if !errors.Is(err, errPoison) {
				t.Errorf("asked about %v", err)
			}
			return verdicts[s].outcome
		}})
		want(t, brokertest.Publish(t, t.Context(), p, brokertest.NewMessage(topic, "k"))[0], s)
	}
}

// returning is a situation that an error brings about by itself.
func returning(s situation, err error) func(t *testing.T) {
	return func(t *testing.T) {
		b := newBench(t)
		b.fail(err)
		p := b.publisher(t, Config{Outcome: func(error) broker.Outcome { return 0 }})
		want(t, brokertest.Publish(t, t.Context(), p, brokertest.NewMessage(topic, "k"))[0], s)
	}
}

var drives = [situations]func(t *testing.T){
	taken: func(t *testing.T) {
		b := newBench(t)
		want(t, brokertest.Publish(t, t.Context(), b.publisher(t, Config{}), brokertest.NewMessage(topic, "k"))[0], taken)
		if all, err := b.read(t.Context(), 1); err != nil || len(all) != 1 {
			t.Errorf("%d messages arrived, %v", len(all), err)
		}
		saying(taken)(t)
	},
	saidDuplicate: saying(saidDuplicate),

	templateFailed: func(t *testing.T) {
		b := newBench(t)
		p := b.publisher(t, Config{Wire: broker.WireConfig{Topic: "{{.Headers.missing}}"}})
		want(t, brokertest.Publish(t, t.Context(), p, brokertest.NewMessage(topic, "k"))[0], templateFailed)
	},
	badText: func(t *testing.T) {
		b := newBench(t)
		p := b.publisher(t, Config{Wire: broker.WireConfig{Format: broker.FormatStructured, Source: "/shop"}})
		m := brokertest.NewMessage(topic, "k")
		m.Type = "\xff"
		want(t, brokertest.Publish(t, t.Context(), p, m)[0], badText)
	},
	saidRejected: saying(saidRejected),

	saidRetry: saying(saidRetry),
	panicked: func(t *testing.T) {
		b := newBench(t)
		m := brokertest.NewMessage(topic, "k")
		m.Record.Headers = map[string]string{poisonous: "panic"}
		want(t, brokertest.Publish(t, t.Context(), b.publisher(t, Config{}), m)[0], panicked)
		want(t, brokertest.Publish(t, t.Context(), b.publisher(t, Config{}), brokertest.NewMessage(topic, "k"))[0], taken)
	},
	behind: func(t *testing.T) {
		b := newBench(t)
		p := b.publisher(t, Config{KeepsOrder: true})
		batch := make([]broker.Envelope, 4)
		for i := range batch {
			batch[i] = brokertest.NewMessage(topic, "k")
		}
		batch[1].Record.Headers = map[string]string{poisonous: "panic"}
		rs := brokertest.Publish(t, t.Context(), p, batch...)
		for i, s := range []situation{taken, panicked, behind, behind} {
			want(t, rs[i], s)
		}
		want(t, brokertest.Publish(t, t.Context(), p, batch[2])[0], taken) // all were answered, or it comes again
		if n := b.called(); n != 3 {
			t.Errorf("Publish was called %d times, want 3", n)
		}
	},

	saidUnavailable: saying(saidUnavailable),
	notConnected: func(t *testing.T) {
		_, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", brokertest.FreePort()))
		returning(notConnected, fmt.Errorf("sending: %w", err))(t)
		_, err = net.DefaultResolver.LookupHost(t.Context(), "no-such-host.invalid")
		returning(notConnected, fmt.Errorf("sending: %w", err))(t)
	},
	notSent: func(t *testing.T) {
		b := newBench(t)
		p := b.publisher(t, Config{Concurrency: 1})
		thaw := b.freeze(true)
		defer thaw()
		brokertest.Start(t, t.Context(), p, brokertest.NewMessage(topic, "a"))
		brokertest.Until(t, "the call runs", func() bool { return b.called() == 1 })
		ctx, cancel := context.WithCancel(t.Context())
		wait := brokertest.Start(t, ctx, p, brokertest.NewMessage(topic, "b"))
		cancel()
		want(t, wait()[0], notSent)
		if n := b.called(); n != 1 {
			t.Errorf("Publish was called %d times, want once", n)
		}
	},
	closed: func(t *testing.T) {
		p := newBench(t).publisher(t, Config{})
		closeNow(p)
		want(t, brokertest.Publish(t, t.Context(), p, brokertest.NewMessage(topic, "k"))[0], closed)
	},

	saidThrottled: saying(saidThrottled),

	failed: func(t *testing.T) {
		saying(failed)(t)
		returning(failed, errors.New("publishing timed out"))(t)
	},
	noAnswer: func(t *testing.T) {
		for _, deaf := range []bool{false, true} {
			b := newBench(t)
			thaw := b.freeze(deaf)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			want(t, brokertest.Publish(t, ctx, b.publisher(t, Config{}), brokertest.NewMessage(topic, "k"))[0], noAnswer)
			cancel()
			thaw()
		}
	},
	contextEnded: func(t *testing.T) {
		for _, deaf := range []bool{false, true} {
			b := newBench(t)
			thaw := b.freeze(deaf)
			ctx, cancel := context.WithCancel(t.Context())
			wait := brokertest.Start(t, ctx, b.publisher(t, Config{}), brokertest.NewMessage(topic, "k"))
			brokertest.Until(t, "the call runs", func() bool { return b.called() == 1 })
			cancel()
			want(t, wait()[0], contextEnded)
			thaw()
		}
	},
}

// What is behind a message that nobody knows of, or that found no connection, was not sent, which is no fault of its own.
func TestWhatIsBehindAnOutageIsUnavailable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		first situation
		then  situation
	}{{errors.New("timed out"), failed, notSent}, {errDown, notConnected, notConnected}} {
		b := newBench(t)
		b.fail(c.err)
		rs := brokertest.Publish(t, t.Context(), b.publisher(t, Config{KeepsOrder: true}), brokertest.NewMessage(topic, "k"), brokertest.NewMessage(topic, "k"))
		want(t, rs[0], c.first)
		want(t, rs[1], c.then)
		if n := b.called(); n != 1 {
			t.Errorf("Publish was called %d times, want once", n)
		}
	}
}

func TestEachSituation(t *testing.T) {
	t.Parallel()
	brokertest.RunTable(t, rows(), func(i int) func(*testing.T) { return drives[i] })
}

// The table of the documentation is the one that the publisher goes by.
func TestTheDocumentationHasTheTable(t *testing.T) {
	t.Parallel()
	brokertest.CheckTable(t, "../../docs/brokers/watermill.md", rows(), *update)
}

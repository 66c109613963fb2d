package nats

import (
	"fmt"
	"sync"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

const window = 1000 // messages on their way

// BenchmarkPublish publishes 512 B messages in batches of 50 with all headers of the raw format, 1000 on their way, to a
// stream in memory that keeps few of them. Compare with BenchmarkNatsPublishAsync: the same window, no headers but the id.
func BenchmarkPublish(b *testing.B) {
	at := newBench(b, commonURL(b), func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 })
	p := at.publisher(Config{})
	b.ReportAllocs()
	b.ResetTimer()
	flood(b, p, b.N, broker.Accepted, func(i int) broker.Envelope { return message(at.topic, fmt.Sprint("key-", i%50)) })
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// flood publishes n messages in batches of 50, of which so many are on their way as the window has places.
func flood(b *testing.B, p *Publisher, n int, want broker.Outcome, make1 func(i int) broker.Envelope) {
	b.Helper()
	slots := make(chan struct{}, window)
	var failed sync.Once
	for at := 0; at < n; at += 50 {
		batch := make([]broker.Envelope, min(50, n-at))
		for i := range batch {
			batch[i] = make1(at + i)
			batch[i].Payload = benchPayload
			slots <- struct{}{}
		}
		p.Publish(b.Context(), batch, func(_ int, r broker.Result) {
			if r.Outcome != want {
				failed.Do(func() { b.Errorf("%s: %v", r.Outcome, r.Err) })
			}
			<-slots
		})
	}
	for range window {
		slots <- struct{}{}
	}
}

// BenchmarkCompare publishes messages of 2,000 keys, 1,000 on their way, without and with compare mode, to a stream in
// memory. BenchmarkCompareAgain is a take-over: a fresh publisher gets a window of 1,000 stored messages of 100 keys.
func BenchmarkCompare(b *testing.B) {
	for name, c := range map[string]Config{"off": {}, "compare": {Compare: true}} {
		b.Run(name, func(b *testing.B) {
			at := newBench(b, commonURL(b), noWindow)
			p := at.publisher(c)
			b.ReportAllocs()
			b.ResetTimer()
			flood(b, p, b.N, broker.Accepted, func(i int) broker.Envelope { return message(at.topic, fmt.Sprint("key-", i%2000)) })
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

func BenchmarkCompareAgain(b *testing.B) {
	at := compareBench{newBench(b, commonURL(b), noWindow), ""}
	owner := at.open()
	for n := 0; n < b.N; n += window {
		b.StopTimer()
		all := make([]broker.Envelope, min(window, b.N-n))
		for i := range all {
			all[i] = message(at.topic, fmt.Sprint("key-", i%100))
		}
		write := func(i int) broker.Envelope { return all[i] }
		flood(b, owner, len(all), broker.Accepted, write)
		at.forgotten()
		next := at.open()
		b.StartTimer()
		flood(b, next, len(all), broker.Duplicate, write)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

var benchPayload = make([]byte, 512)

// BenchmarkNatsPublishAsync is what nats.go itself does, with the same window: with the id alone, and with the headers
// that BenchmarkPublish sends.
func BenchmarkNatsPublishAsync(b *testing.B) {
	for name, full := range map[string]bool{"id": false, "headers": true} {
		b.Run(name, func(b *testing.B) { natsPublishAsync(b, full) })
	}
}

func natsPublishAsync(b *testing.B, full bool) {
	at := newBench(b, commonURL(b), func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 })
	js, err := jetstream.New(at.nc, jetstream.WithPublishAsyncMaxPending(2*window))
	if err != nil {
		b.Fatal(err)
	}
	futures := make(chan jetstream.PubAckFuture, window)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for f := range futures {
			select {
			case <-f.Ok():
			case err := <-f.Err():
				b.Error(err)
			}
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		m := &natsgo.Msg{Subject: at.topic, Data: benchPayload, Header: natsgo.Header{}}
		if full {
			e := message(at.topic, "key")
			for name, value := range e.Headers() {
				m.Header.Set(name, value)
			}
		}
		m.Header.Set(natsgo.MsgIdHdr, outbox.NewID().String())
		f, err := js.PublishMsgAsync(m)
		if err != nil {
			b.Fatal(err)
		}
		futures <- f
	}
	close(futures)
	<-done
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

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
	slots := make(chan struct{}, window)
	var failed sync.Once
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += 50 {
		batch := benchBatch(at.topic, min(50, b.N-n))
		for range batch {
			slots <- struct{}{}
		}
		p.Publish(b.Context(), batch, func(_ int, r broker.Result) {
			if r.Outcome != broker.Accepted {
				failed.Do(func() { b.Errorf("%s: %v", r.Outcome, r.Err) })
			}
			<-slots
		})
	}
	for range window {
		slots <- struct{}{}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

func benchBatch(topic string, n int) []broker.Envelope {
	batch := make([]broker.Envelope, n)
	for i := range batch {
		batch[i] = message(topic, fmt.Sprint("key-", i))
		batch[i].Payload = benchPayload
	}
	return batch
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

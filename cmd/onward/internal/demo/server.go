package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	streamName  = "ORDERS"
	smallestMax = 32 << 10  // max_msg_size of the stream at first
	widerMax    = 256 << 10 // and after somebody has looked at the dead letters
	dupeWindow  = 2 * time.Minute
)

// natsServer is a nats-server in this process, with JetStream on disk. It is stopped and started again under one address.
type natsServer struct {
	options server.Options
	running *server.Server // nil: stopped
}

// startServer starts a server on a free port of this machine.
func startServer(ctx context.Context, folder string) (*natsServer, error) {
	s := &natsServer{options: server.Options{
		ServerName: "onward-demo", Host: "127.0.0.1", JetStream: true, StoreDir: folder, NoLog: true, NoSigs: true,
	}}
	var err error
	for range 20 { // somebody may take the port between the look and the start
		if s.options.Port, err = freePort(ctx); err != nil {
			return nil, err
		}
		if err = s.start(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// freePort finds a port that nobody listens on, below those that systems give to clients: while the server is stopped, a client
// that tries to reach it must not be given its port.
func freePort(ctx context.Context) (int, error) {
	var err error
	var listening net.ListenConfig
	for range 100 {
		port := 20000 + rand.IntN(12000)
		var l net.Listener
		if l, err = listening.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

func (s *natsServer) url() string {
	return "nats://" + net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port))
}

func (s *natsServer) start() error {
	running, err := server.NewServer(s.options.Clone())
	if err != nil {
		return fmt.Errorf("start the nats-server: %w", err)
	}
	running.Start()
	if !running.ReadyForConnections(10 * time.Second) {
		running.Shutdown()
		return fmt.Errorf("start the nats-server: it does not listen on %s", s.url())
	}
	s.running = running
	return nil
}

// stop ends the server as its owner would: what it has acknowledged is on the disk.
func (s *natsServer) stop() {
	if s.running != nil {
		s.running.Shutdown()
		s.running.WaitForShutdown()
		s.running = nil
	}
}

// connect opens a connection; the caller closes it.
func connect(url, name string) (*natsgo.Conn, jetstream.JetStream, error) {
	nc, err := natsgo.Connect(url, natsgo.Name(name), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the stream: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, js, nil
}

// streamConfig is the stream that takes the messages, up to this size.
func streamConfig(most int32) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name: streamName, Storage: jetstream.FileStorage, Duplicates: dupeWindow, MaxMsgSize: most,
	}
	for _, region := range Regions {
		c.Subjects = append(c.Subjects, "orders."+region)
	}
	return c
}

// makeStream makes the stream, or changes it.
func makeStream(ctx context.Context, url string, most int32) error {
	nc, js, err := connect(url, "onward demo: operator")
	if err != nil {
		return err
	}
	defer nc.Close()
	if _, err := js.CreateOrUpdateStream(ctx, streamConfig(most)); err != nil {
		return fmt.Errorf("make the stream %s: %w", streamName, err)
	}
	return nil
}

// readStream reads the whole stream, from its beginning, by a connection of its own.
func readStream(ctx context.Context, url string) (arrivals []Arrival, err error) {
	nc, js, err := connect(url, "onward demo: proof")
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	stream, err := js.Stream(ctx, streamName)
	if err != nil {
		return nil, fmt.Errorf("read the stream back: %w", err)
	}
	most := stream.CachedInfo().State.Msgs
	if most == 0 {
		return nil, nil
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return nil, fmt.Errorf("read the stream back: %w", err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("read the stream back: %w", err)
	}
	defer messages.Stop()
	for uint64(len(arrivals)) < most {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("read the stream back, after %d of %d messages: %w", len(arrivals), most, err)
		}
		about, err := m.Metadata()
		if err != nil {
			return nil, errors.Join(errors.New("read the stream back"), err)
		}
		arrivals = append(arrivals, Arrival{ID: m.Headers().Get("onward-id"), Digest: digest(m.Data()), Position: about.Sequence.Stream})
	}
	return arrivals, nil
}

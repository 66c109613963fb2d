package rabbitmq

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/inflight"
)

// When a lost connection is made again, at the earliest, and how long the server has to say goodbye.
const (
	redialAfter = 250 * time.Millisecond
	goodbye     = time.Second
)

// link is one connection. The publisher's mutex guards blocked.
type link struct {
	publisher *Publisher
	conn      *amqp.Connection
	socket    net.Conn
	lanes     []*lane   // the last one is for messages that must be alone on their channel
	settles   time.Time // until then the server may not know each queue yet; zero: it does
	blocked   string    // why the server takes no messages; "" where it does
	lost      chan *amqp.Error
}

// keep is the goroutine that has a connection, and another one when that is lost.
func (p *Publisher) keep() {
	for n := 0; p.flights.Stopped().Err() == nil; n++ {
		conn, socket, err := p.dial.connect(p.flights.Stopped(), n)
		if err == nil {
			p.serve(conn, socket, n > 0)
			continue
		}
		p.mu.Lock()
		p.fault = err
		p.mu.Unlock()
		select {
		case <-time.After(redialAfter + rand.N(redialAfter)):
		case <-p.flights.Stopped().Done():
		}
	}
}

// settling is for how long a server that may have been started again is given to know its queues: streams took 1.6 s.
const settling = 10 * time.Second

// serve uses a connection until it is lost, or the publisher stops. again: it is not the first, nor the first that was tried.
func (p *Publisher) serve(conn *amqp.Connection, socket net.Conn, again bool) {
	l := &link{publisher: p, conn: conn, socket: socket, lost: conn.NotifyClose(make(chan *amqp.Error, 1))}
	blocks := conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	var group sync.WaitGroup
	for n := range p.cfg.Channels + 1 {
		l.lanes = append(l.lanes, &lane{link: l, alone: n == p.cfg.Channels, wake: make(chan struct{}, 1)})
	}
	p.mu.Lock()
	if again {
		l.settles = time.Now().Add(p.settling)
	}
	p.link, p.fault, p.limit, p.largest = l, nil, 0, smallest
	clear(p.denied)
	clear(p.taken)
	p.mu.Unlock()
	for _, lane := range l.lanes {
		group.Go(lane.run)
	}
	group.Go(func() { p.heed(l, blocks) })
	var err error
	select {
	case e := <-l.lost:
		if e != nil {
			err = e
		}
	case <-p.flights.Stopped().Done():
		goodbyes := time.AfterFunc(goodbye, func() { _ = socket.Close() })
		_ = conn.Close()
		goodbyes.Stop()
	}
	_ = socket.Close()
	group.Wait()
	p.unlink(l, err)
}

// heed notes when the server takes no messages, and when it does again.
func (p *Publisher) heed(l *link, blocks <-chan amqp.Blocking) {
	for b := range blocks {
		p.mu.Lock()
		l.blocked = ""
		if b.Active {
			l.blocked = b.Reason
			if l.blocked == "" {
				l.blocked = "no reason given"
			}
		}
		p.mu.Unlock()
	}
}

// unlink ends the use of a connection, and answers what waited for one of its channels.
func (p *Publisher) unlink(l *link, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link, p.fault = nil, err
	if err == nil {
		p.fault = errors.New("rabbitmq: the connection was closed")
	}
	for _, lane := range l.lanes {
		for f := lane.held.Pop(); f != nil; f = lane.held.Pop() {
			p.flights.Settle(f, notConnected.errorf("no connection: %w", p.fault))
		}
	}
}

// drop gives a connection up: what was sent on it is Uncertain.
func (l *link) drop() { _ = l.socket.Close() }

// lookUp asks whether the server answers, and whether an exchange is there, on a channel of its own: a no closes it.
func (l *link) lookUp(exchange string, named bool) error {
	channel, err := l.conn.Channel()
	if err != nil {
		return err
	}
	if named { // the kind is not compared
		if err := channel.ExchangeDeclarePassive(exchange, amqp.ExchangeDirect, true, false, false, false, nil); err != nil {
			return err
		}
	}
	return channel.Close()
}

// laneOf is the channel of a message: a key has its own, and a message that must be alone goes where nothing else is.
func (l *link) laneOf(e *broker.Envelope, alone bool) *lane {
	if alone {
		return l.lanes[len(l.lanes)-1]
	}
	h := fnv.New32a()
	if e.Key != "" {
		_, _ = h.Write([]byte(e.Key))
	} else {
		_, _ = h.Write(e.ID[:])
	}
	return l.lanes[h.Sum32()%uint32(len(l.lanes)-1)] //nolint:gosec // at most 100
}

// lane is one channel, and another one when the server has closed that. The publisher's mutex guards all but link, alone
// and wake.
type lane struct {
	link  *link
	alone bool // one message at a time, so that it is known whose fault it is when the server closes the channel
	wake  chan struct{}

	channel *amqp.Channel // nil while there is none
	returns chan amqp.Return
	entries []*entry       // what was sent and is not confirmed, oldest first
	held    inflight.Queue // what waits until the lane takes it
}

// entry is one basic.publish.
type entry struct {
	flight   *inflight.Flight // it may have its answer already
	id       string           // its message-id
	size     int              // of its payload
	to       address
	confirm  *amqp.DeferredConfirmation // nil until it was sent
	returned *amqp.Return
	doubtful bool // a basic.return may have been for this one
}

// maxReturns is how many messages may have come back and wait to be looked at. The client drops those for which there is no
// room for 5 s; whoever looks does nothing else.
const maxReturns = 1024

// errNotNow: the channel closed while it was made.
var errNotNow = errors.New("rabbitmq: the channel was closed")

// run has a channel, and another one when that was closed, until the connection is lost.
func (l *lane) run() {
	for {
		channel, closes, err := l.open()
		if err != nil {
			l.link.drop()
			return
		}
		if !l.watch(channel, closes) {
			return
		}
	}
}

// open makes a channel that confirms.
func (l *lane) open() (*amqp.Channel, <-chan *amqp.Error, error) {
	channel, err := l.link.conn.Channel()
	if err != nil {
		return nil, nil, fmt.Errorf("open a channel: %w", err)
	}
	closes := channel.NotifyClose(make(chan *amqp.Error, 1))
	returns := channel.NotifyReturn(make(chan amqp.Return, maxReturns))
	if err := channel.Confirm(false); err != nil {
		return nil, nil, fmt.Errorf("ask for confirmations: %w", err)
	}
	p := l.link.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	l.channel, l.returns = channel, returns
	l.release()
	return channel, closes, nil
}

// takes reports whether a message may be sent now. The caller has the lock.
func (l *lane) takes() bool { return l.channel != nil && (!l.alone || len(l.entries) == 0) }

// call wakes who watches the lane, or will.
func (l *lane) call() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// release puts what was held back into the queue: one message where one goes alone. The caller has the lock.
func (l *lane) release() {
	p := l.link.publisher
	for l.takes() {
		f := l.held.Pop()
		if f == nil {
			return
		}
		p.flights.Push(f)
		if l.alone {
			return
		}
	}
}

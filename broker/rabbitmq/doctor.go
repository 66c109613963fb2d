package rabbitmq

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

var _ doctor.Examiner = (*Publisher)(nil)

// Examine reads which queues the question's messages go to, and how those keep them: what a confirmation is worth. AMQP says
// little more than whether an exchange or queue is there: the rest is read where Config.ManagementURL leads to the
// management plugin. It has connections of its own for a moment.
func (p *Publisher) Examine(ctx context.Context, q doctor.Question) (doctor.Diagnosis, error) {
	conn, err := p.reach(ctx)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(goodbye)) }()
	x := &examination{p: p, conn: conn, queues: map[string]bool{}, exchanges: map[string]*exchange{}}
	product, _ := conn.Properties["product"].(string)
	version, _ := conn.Properties["version"].(string)
	x.d.Server = product + " " + version
	if err := x.addresses(ctx, q.Samples); err != nil {
		return doctor.Diagnosis{}, err
	}
	if p.cfg.ManagementURL == "" {
		x.unmanaged("name the management plugin in rabbitmq.management_url: http://user:password@host:15672")
	} else {
		x.managed(ctx)
	}
	x.d.Worth = x.worth()
	return x.d, nil
}

// examination is one run of Examine.
type examination struct {
	p         *Publisher
	conn      *amqp.Connection
	api       *management
	d         doctor.Diagnosis
	targets   []address // where messages go
	exchanges map[string]*exchange
	queues    map[string]bool // that were looked at
	classic   bool            // one of them is
	transient bool            // one of them goes with its node
	members   int             // of the quorum queue or stream that has the fewest; 0: there is none
}

func (x *examination) found(check, where string, s doctor.Severity, read, means, fix string) {
	if s == doctor.OK {
		means, fix = "", ""
	}
	x.d.Add(doctor.Finding{Check: check, Where: where, Severity: s, Read: read, Means: means, Fix: fix})
}

// reach opens a connection.
func (p *Publisher) reach(ctx context.Context) (*amqp.Connection, error) {
	var last error
	for n := range p.dial.urls {
		conn, _, err := p.dial.connect(ctx, n)
		if err == nil {
			return conn, nil
		}
		last = err
	}
	return nil, &outbox.Error{
		Code: broker.CodeUnavailable, Op: "examine RabbitMQ", Detail: "there is no connection", Err: last,
		Hint: "is the server up, and are address, user, password, virtual host and TLS settings right? Tried: " + p.dial.places(),
	}
}

// addresses finds where messages go, and whether that is there.
func (x *examination) addresses(ctx context.Context, samples []*outbox.Record) error {
	seen := map[address]bool{}
	for _, r := range samples {
		var out broker.Outgoing
		e := broker.Envelope{Record: r}
		if err := x.p.wire.Encode(&e, &out); err != nil {
			continue // of one message: it becomes a dead letter, and says why
		}
		if a, fault := x.p.route.of(&e, out.RoutingKey); fault == nil && !seen[a] {
			seen[a] = true
			x.targets = append(x.targets, a)
		}
	}
	name, fixed := x.p.route.fixed()
	switch {
	case fixed && name != "":
		there, err := x.there(ctx, func(c *amqp.Channel) error {
			return c.ExchangeDeclarePassive(name, amqp.ExchangeDirect, true, false, false, false, nil)
		})
		if err != nil {
			return err
		}
		if !there {
			return &outbox.Error{
				Code: broker.CodeUnavailable, Op: "examine RabbitMQ", Detail: fmt.Sprintf("exchange %q does not exist", name),
				Hint: "declare it, durable, and bind a queue: rabbitmqadmin declare exchange name=" + name + " type=topic durable=true",
			}
		}
		x.found("rabbitmq-exchange", "exchange "+name, doctor.OK, "it exists", "", "")
		if len(x.targets) == 0 {
			x.targets = append(x.targets, address{exchange: name}) // whatever its routing key
		}
	case len(x.targets) == 0:
		x.found("rabbitmq-route", "", doctor.Unknown, "no exchange or queue was looked at", "the outbox has no message yet, and the sink names no topic without wildcards", "onward doctor --topic NAME")
	}
	return x.defaultQueues(ctx)
}

// defaultQueues looks for the queues that the default exchange leads to.
func (x *examination) defaultQueues(ctx context.Context) error {
	for _, a := range x.targets {
		if a.exchange != "" {
			continue
		}
		there, err := x.there(ctx, func(c *amqp.Channel) error {
			_, err := c.QueueDeclarePassive(a.key, true, false, false, false, nil)
			return err
		})
		if err != nil {
			return err
		}
		if !there {
			x.unroutable(a)
		}
	}
	return nil
}

func (x *examination) unroutable(a address) {
	where := "queue " + a.key
	if a.exchange != "" {
		where = fmt.Sprintf("exchange %s, routing key %s", a.exchange, a.key)
	}
	x.found("rabbitmq-route", where, doctor.Warning, "no queue takes its messages", "they become dead letters", "rabbitmqadmin declare queue name=NAME durable=true queue_type=quorum, and bind it")
}

// there asks on a channel of its own: a no closes it.
func (x *examination) there(ctx context.Context, ask func(*amqp.Channel) error) (bool, error) {
	stop := context.AfterFunc(ctx, func() { _ = x.conn.CloseDeadline(time.Now()) })
	defer stop()
	channel, err := x.conn.Channel()
	if err == nil {
		if err = ask(channel); codeOf(err) == codeNotFound {
			return false, nil
		}
		_ = channel.Close()
	}
	if codeOf(err) == amqp.AccessRefused || codeOf(err) == amqp.ResourceLocked {
		return true, nil // it is there, and not this user's to ask about
	}
	if err != nil {
		return false, &outbox.Error{Code: broker.CodeUnavailable, Op: "examine RabbitMQ", Detail: "the server does not answer", Err: err}
	}
	return true, nil
}

// unmanaged is what is not known without the management plugin.
func (x *examination) unmanaged(fix string) {
	x.found("rabbitmq-management", "", doctor.Unknown, "queue types, durability, overflow and alternate exchange were not read: AMQP does not say them", "what a confirmation is worth is decided by them", fix)
}

// worth is what a confirmation survives, for the queue where it is worth least.
func (x *examination) worth() string {
	var text string
	switch {
	case x.transient:
		text = "the message is in a queue that goes with its node: a restart loses it"
	case x.classic:
		text = "the message is on one node: what that node loses is lost"
	case x.members == 1:
		text = "the message is on the disk of one node: it survives a crash, and not the loss of that disk"
	case x.members > 1:
		text = fmt.Sprintf("the message is on the disks of %d of %d nodes: it survives the loss of %d", x.members/2+1, x.members, (x.members-1)/2)
	default:
		return "not known: the queues that messages go to were not read"
	}
	if x.d.Has("rabbitmq-overflow", doctor.Unsafe) {
		text += "; and until the queue is full, when the oldest messages go"
	}
	return text
}

package rabbitmq

import (
	"context"
	"errors"
	"fmt"

	"github.com/onwardhq/onward/doctor"
)

// queueView is what the management plugin says of a queue.
type queueView struct {
	Type       string     `json:"type"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Exclusive  bool       `json:"exclusive"`
	Arguments  definition `json:"arguments"`
	Policy     definition `json:"effective_policy_definition"`
	Members    []string   `json:"members"`
	Online     []string   `json:"online"`
}

// setting is a queue's own argument, or else what a policy says.
func (v *queueView) setting(name string) any {
	if own, ok := v.Arguments["x-"+name]; ok {
		return own
	}
	return v.Policy[name]
}

// queue reads one, and says what is to be said of it, once.
func (x *examination) queue(ctx context.Context, name string) error {
	if x.queues[name] {
		return nil
	}
	x.queues[name] = true
	var v queueView
	_, err := x.api.get(ctx, &v, "queues", x.api.vhost, name)
	if errors.Is(err, errNotThere) {
		return nil // said by whoever asked over AMQP, or deleted meanwhile
	}
	if err != nil {
		return err
	}
	where := "queue " + name
	x.keeps(where, name, &v)
	x.overflows(where, name, &v)
	if ttl := v.setting("message-ttl"); ttl != nil {
		x.found("rabbitmq-message-ttl", where, doctor.Note, fmt.Sprintf("message-ttl = %v ms", ttl), "messages that wait for longer are removed, read or not", "leave message-ttl out of the queue and its policy, if that is not meant")
	}
	if idle := v.setting("expires"); idle != nil {
		x.found("rabbitmq-expires", where, doctor.Warning, fmt.Sprintf("expires = %v ms", idle), "a queue without a consumer for that long is deleted with all that it has", "leave expires out of the queue and its policy")
	}
	return nil
}

// keeps is how many nodes have a message when it is confirmed.
func (x *examination) keeps(where, name string, v *queueView) {
	const durable, kind = "rabbitmq-queue-durable", "rabbitmq-queue-type"
	anew := "make it anew: rabbitmqadmin declare queue name=" + name + " durable=true queue_type=quorum"
	if v.Durable && !v.AutoDelete && !v.Exclusive {
		x.found(durable, where, doctor.OK, "durable = true", "", "")
	} else {
		x.transient = true
		x.found(durable, where, doctor.Unsafe, fmt.Sprintf("durable = %v, auto_delete = %v, exclusive = %v", v.Durable, v.AutoDelete, v.Exclusive), "the queue goes with its node, its consumer or its connection, and so do messages that were confirmed", anew)
	}
	read := fmt.Sprintf("type = %s, members: %d", v.Type, len(v.Members))
	switch v.Type {
	case "quorum", "stream":
		if x.members == 0 || len(v.Members) < x.members {
			x.members = len(v.Members)
		}
		switch {
		case len(v.Members) < 2:
			x.found(kind, where, doctor.Warning, read, "messages are on one node: while it is away nothing is taken, and what its disk loses is lost", "rabbitmq-queues grow NODE all, on a cluster of three nodes or more")
		case len(v.Online) < len(v.Members):
			x.found(kind, where, doctor.Warning, fmt.Sprintf("%s, online: %d", read, len(v.Online)), "fewer copies are made than the queue asks for", "start the nodes that are away: rabbitmq-diagnostics cluster_status")
		default:
			x.found(kind, where, doctor.OK, read, "", "")
		}
	default:
		x.classic = true
		read = "type = " + v.Type
		if mode, mirrored := v.Policy["ha-mode"]; mirrored {
			x.found(kind, where, doctor.Warning, fmt.Sprintf("%s, ha-mode = %v", read, mode), "mirrors that were not in step lose messages when one of them takes over; RabbitMQ 4 has none any more", anew)
			return
		}
		x.found(kind, where, doctor.Unsafe, read, "a classic queue has its messages on one node: what that node loses is lost", anew)
	}
}

// overflows is what becomes of messages when the queue is full.
func (x *examination) overflows(where, name string, v *queueView) {
	const check = "rabbitmq-overflow"
	limit := ""
	for _, setting := range []string{"max-length", "max-length-bytes"} {
		if value := v.setting(setting); value != nil {
			limit += fmt.Sprintf(", %s = %.0f", setting, value)
		}
	}
	overflow, _ := v.setting("overflow").(string)
	if overflow == "" {
		overflow = "drop-head" // so the server says nothing
	}
	read := "overflow = " + overflow + limit
	fix := "rabbitmqctl set_policy --apply-to queues full '^" + name + "$' '{\"overflow\":\"reject-publish\"}'"
	switch {
	case limit == "":
		x.found(check, where, doctor.OK, "there is no max-length", "", "")
	case overflow != "drop-head": // refused and sent again
		x.found(check, where, doctor.OK, read, "", "")
	case v.setting("dead-letter-exchange") != nil:
		x.found(check, where, doctor.Warning, read, "a full queue moves its oldest messages to its dead-letter exchange, read or not", fix)
	default:
		x.found(check, where, doctor.Unsafe, read, "a full queue drops its oldest messages, confirmed and not read", fix)
	}
}

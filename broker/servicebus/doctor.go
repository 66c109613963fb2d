package servicebus

import (
	"context"
	"errors"
	"fmt"

	"github.com/Azure/go-amqp"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

var _ doctor.Examiner = (*Publisher)(nil)

// Examine opens the queues and topics that the question's messages go to, and sends nothing. Their settings can be read by
// whoever may manage them, and not by who may send. It has a connection of its own for a moment.
func (p *Publisher) Examine(ctx context.Context, q doctor.Question) (doctor.Diagnosis, error) {
	l, err := p.dial.open(ctx)
	if err != nil {
		return doctor.Diagnosis{}, &outbox.Error{Code: broker.CodeUnavailable, Op: "examine Service Bus", Detail: "the service does not answer", Err: err, Hint: p.hint(err)}
	}
	defer l.free()
	d := doctor.Diagnosis{Server: "Azure Service Bus", Worth: "the service has stored the message: by Microsoft's word on three replicas, in one region"}
	if product, ok := l.conn.Properties()["product"].(string); ok {
		d.Server = product
	}
	d.Add(p.examineTLS())
	for _, entity := range p.entitiesOf(q.Samples) {
		if ctx.Err() != nil {
			return doctor.Diagnosis{}, fmt.Errorf("examine Service Bus: %w", context.Cause(ctx))
		}
		d.Add(p.examineEntity(ctx, l, entity, q)...)
	}
	d.Add(doctor.Finding{
		Check: "servicebus-settings", Severity: doctor.Unknown, Read: "sessions, duplicate detection, size and time to live cannot be read with the right to send",
		Means: "without sessions consumers may get a key's messages out of order; without duplicate detection they get the second copy of a message that was uncertain; a time to live removes messages that were accepted",
		Fix:   "az servicebus queue show --resource-group GROUP --namespace-name NAMESPACE --name QUEUE --query '{sessions: requiresSession, duplicates: requiresDuplicateDetection, window: duplicateDetectionHistoryTimeWindow, ttl: defaultMessageTimeToLive, megabytes: maxSizeInMegabytes}'",
	})
	return d, nil
}

func (p *Publisher) examineTLS() doctor.Finding {
	if !p.dial.address.emulator {
		return doctor.Finding{Check: "servicebus-tls", Severity: doctor.OK, Read: "connections have TLS"}
	}
	return doctor.Finding{
		Check: "servicebus-tls", Severity: doctor.Warning, Read: "UseDevelopmentEmulator=true: connections have no TLS",
		Means: "it is an emulator, or anybody on the way reads messages and tokens", Fix: "take UseDevelopmentEmulator out of the connection string",
	}
}

// entitiesOf are the queues and topics of messages, each once.
func (p *Publisher) entitiesOf(samples []*outbox.Record) (all []string) {
	if p.fixed != "" {
		return []string{p.fixed}
	}
	seen := map[string]bool{}
	for _, r := range samples {
		entity, err := p.wire.Topic(&broker.Envelope{Record: r})
		if err == nil && !seen[entity] {
			seen[entity], all = true, append(all, entity)
		}
	}
	return all
}

// examineEntity opens one for sending.
func (p *Publisher) examineEntity(ctx context.Context, l *link, entity string, q doctor.Question) []doctor.Finding {
	ctx, cancel := context.WithTimeout(ctx, p.dial.options.Timeout)
	defer cancel()
	session, sender, _, err := l.attach(ctx, p.dial, entity)
	if err != nil {
		f := doctor.Finding{Check: "servicebus-entity", Where: entity, Severity: doctor.Unsafe, Read: condition(err), Means: "messages for it are not taken: they wait, or become dead letters", Fix: p.hintFor(entity, err)}
		return []doctor.Finding{f}
	}
	defer hangUp(session)
	found := []doctor.Finding{{Check: "servicebus-entity", Where: entity, Severity: doctor.OK, Read: "it can be opened for sending"}}
	if limit := sender.MaxMessageSize(); limit > 0 {
		found = append(found, q.Payload("servicebus-max-message", entity, "max-message-size", p.takes(limit), "the tier Premium takes larger messages: az servicebus queue update ... --max-message-size KILOBYTES"))
	}
	return found
}

// condition is what the service said, in short.
func condition(err error) string {
	if e := (*amqp.Error)(nil); errors.As(err, &e) {
		return fmt.Sprintf("%s: %s", e.Condition, e.Description)
	}
	return err.Error()
}

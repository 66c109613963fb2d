package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

var _ doctor.Examiner = (*Publisher)(nil)

// Examine reads the settings of the topics that the question's messages go to: what an acknowledgement is worth. Beside
// DESCRIBE it needs DESCRIBE_CONFIGS on them; without it, it says that it could not read them.
func (p *Publisher) Examine(ctx context.Context, q doctor.Question) (doctor.Diagnosis, error) {
	x := &examination{p: p, q: q}
	names := x.topics()
	r := kmsg.NewPtrMetadataRequest()
	r.Topics = []kmsg.MetadataRequestTopic{}
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		r.Topics = append(r.Topics, t)
	}
	answer, err := r.RequestWith(ctx, p.client)
	if err != nil {
		return doctor.Diagnosis{}, &outbox.Error{
			Code: broker.CodeUnavailable, Op: "examine kafka", Detail: "the cluster does not answer", Err: err,
			Hint: "see that the brokers of the sink's url run, that this host reaches the addresses that they advertise, and that TLS, user and password are as they want them",
		}
	}
	x.d.Server = fmt.Sprintf("Kafka, %d brokers", len(answer.Brokers))
	if len(answer.Brokers) == 1 {
		x.d.Server = "Kafka, 1 broker"
	}
	x.brokers = len(answer.Brokers)
	if x.bootstrap = "HOST:9092"; x.brokers > 0 {
		x.bootstrap = net.JoinHostPort(answer.Brokers[0].Host, strconv.Itoa(int(answer.Brokers[0].Port)))
	}
	if len(names) == 0 {
		x.d.Worth = "not known: no topic is known that messages go to"
		x.d.Add(doctor.Finding{
			Check: "kafka-topic", Severity: doctor.Unknown, Read: "no topic was looked at", Means: "the outbox has no message yet, and the sink names no topic without wildcards", Fix: "onward doctor --topic NAME",
		})
		return x.d, nil
	}
	settings, err := x.settings(ctx, kmsg.ConfigResourceTypeTopic, topicSettings, names)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	for _, t := range answer.Topics {
		if t.Topic != nil {
			x.topic(*t.Topic, t, settings[*t.Topic])
		}
	}
	x.d.Worth = x.worth()
	return x.d, nil
}

// topicSettings are those that decide.
var topicSettings = []string{
	"min.insync.replicas", "unclean.leader.election.enable", "max.message.bytes", "cleanup.policy", "retention.ms", "retention.bytes", "flush.messages",
}

// examination is one run of Examine.
type examination struct {
	p         *Publisher
	q         doctor.Question
	d         doctor.Diagnosis
	brokers   int
	bootstrap string // the address of one, for commands
	looked    bool   // at a topic whose settings could be read
	copies    int    // the fewest that an acknowledgement stands for
	of        int    // replicas of that topic
	flushed   bool   // each message is on the disk when it is acknowledged, everywhere
	unclean   bool   // anywhere
}

// topics are those that the question's messages go to.
func (x *examination) topics() (names []string) {
	for _, r := range x.q.Samples {
		name, err := x.p.wire.Topic(&broker.Envelope{Record: r})
		if err == nil && checkTopic(name) == nil && !slices.Contains(names, name) { // others become dead letters, and say why
			names = append(names, name)
		}
	}
	return names
}

// configured are the settings of one topic or broker; err: why they could not be read.
type configured struct {
	values map[string]string
	err    error
}

func (x *examination) settings(ctx context.Context, kind kmsg.ConfigResourceType, settings, names []string) (map[string]configured, error) {
	r := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range names {
		one := kmsg.NewDescribeConfigsRequestResource()
		one.ResourceType, one.ResourceName, one.ConfigNames = kind, name, settings
		r.Resources = append(r.Resources, one)
	}
	answer, err := r.RequestWith(ctx, x.p.client)
	if err != nil {
		return nil, &outbox.Error{Code: broker.CodeUnavailable, Op: "examine kafka", Detail: "the cluster does not say its settings", Err: err}
	}
	found := map[string]configured{}
	for _, one := range answer.Resources {
		c := configured{values: map[string]string{}, err: kerr.ErrorForCode(one.ErrorCode)}
		for _, entry := range one.Configs {
			c.values[entry.Name] = valueOf(entry.Value)
		}
		found[one.ResourceName] = c
	}
	return found, nil
}

func (x *examination) found(check, topic string, s doctor.Severity, read, means, fix string) {
	if s == doctor.OK {
		means, fix = "", ""
	}
	x.d.Add(doctor.Finding{Check: check, Where: "topic " + topic, Severity: s, Read: read, Means: means, Fix: fix})
}

// alter is the command that sets a topic's setting.
func (x *examination) alter(topic, setting string) string {
	return "kafka-configs --bootstrap-server " + x.bootstrap + " --alter --entity-type topics --entity-name " + topic + " --add-config " + setting
}

// topic looks at one.
func (x *examination) topic(name string, t kmsg.MetadataResponseTopic, c configured) {
	if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
		x.missing(name, err)
		return
	}
	x.found("kafka-topic", name, doctor.OK, fmt.Sprintf("partitions: %d", len(t.Partitions)), "", "")
	replicas, inSync := 0, 0
	for i, p := range t.Partitions {
		if i == 0 || len(p.Replicas) < replicas {
			replicas = len(p.Replicas)
		}
		if i == 0 || len(p.ISR) < inSync {
			inSync = len(p.ISR)
		}
	}
	if c.err != nil || c.values["min.insync.replicas"] == "" {
		x.found("kafka-settings", name, doctor.Unknown, fmt.Sprintf("its settings were not read: %v", cause(c.err)), "what an acknowledgement is worth is decided by them", "kafka-acls --bootstrap-server "+x.bootstrap+" --add --allow-principal User:NAME --operation DescribeConfigs --topic "+name)
		return
	}
	x.replicas(name, replicas, inSync, c)
	x.elections(name, replicas, c)
	if limit, err := strconv.Atoi(c.values["max.message.bytes"]); err == nil {
		x.d.Add(x.q.Payload("kafka-max-message-bytes", "topic "+name, fmt.Sprintf("max.message.bytes = %d", limit), x.p.wire.MaxPayload(limit-recordRoom), x.alter(name, "max.message.bytes=2097152")))
	}
	x.cleaning(name, c)
}

func cause(err error) error {
	if err == nil {
		return errors.New("the cluster left them out")
	}
	return err
}

// missing is a topic that the cluster has not, or does not show.
func (x *examination) missing(name string, err error) {
	const check = "kafka-topic"
	create := fmt.Sprintf("kafka-topics --bootstrap-server %s --create --topic %s --partitions 12 --replication-factor %d --config min.insync.replicas=%d", x.bootstrap, name, min(3, max(1, x.brokers)), min(2, max(1, x.brokers-1)))
	switch {
	case !errors.Is(err, kerr.UnknownTopicOrPartition):
		x.found(check, name, doctor.Unknown, err.Error(), "it could not be looked at", "kafka-acls --bootstrap-server "+x.bootstrap+" --add --allow-principal User:NAME --producer --topic "+name)
	case x.p.cfg.CreateTopics:
		x.found(check, name, doctor.Note, "it does not exist", "the first message makes it, with the cluster's default.replication.factor and min.insync.replicas", create+", to say what it is to be like")
	default:
		x.found(check, name, doctor.Warning, "it does not exist", "its messages wait, and become dead letters in the end", create)
	}
}

// replicas are what the loss of a broker leaves.
func (x *examination) replicas(name string, replicas, inSync int, c configured) {
	flushes := c.values["flush.messages"] == "1"
	least, _ := strconv.Atoi(c.values["min.insync.replicas"])
	copies := min(least, replicas) // since Kafka 4 that is what counts; before, more than there are takes nothing
	if !x.looked || copies < x.copies {
		x.copies, x.of = copies, replicas
	}
	x.flushed = flushes && (x.flushed || !x.looked)
	x.looked = true

	read := fmt.Sprintf("replication factor = %d", replicas)
	more := "kafka-reassign-partitions with three replicas for each partition; or make the topic anew with --replication-factor 3"
	switch {
	case replicas > 1:
		x.found("kafka-replication-factor", name, doctor.OK, read, "", "")
	case flushes:
		x.found("kafka-replication-factor", name, doctor.Warning, read+", flush.messages = 1", "one broker has it, on its disk: what that disk loses is lost, and while the broker is away nothing is taken", more)
	default:
		x.found("kafka-replication-factor", name, doctor.Unsafe, read, "an acknowledged message is in the memory of one machine, which writes it to its disk later: a crash of the machine loses it", more)
	}
	read = fmt.Sprintf("min.insync.replicas = %d, of %d", least, replicas)
	switch {
	case replicas == 1:
		x.found("kafka-min-insync-replicas", name, doctor.Note, read, "there is no second replica to wait for", more)
	case copies <= 1:
		x.found("kafka-min-insync-replicas", name, doctor.Unsafe, read, "while the followers lag, the leader acknowledges alone: what it has then is lost with it", x.alter(name, "min.insync.replicas=2"))
	case copies == replicas:
		x.found("kafka-min-insync-replicas", name, doctor.Note, read, "while one broker is away nothing is taken: messages wait", "a third replica; "+x.alter(name, "min.insync.replicas="+strconv.Itoa(max(2, replicas-1))))
	default:
		x.found("kafka-min-insync-replicas", name, doctor.OK, read, "", "")
	}
	read = fmt.Sprintf("in sync: %d of %d", inSync, replicas)
	switch {
	case inSync >= replicas:
		x.found("kafka-in-sync", name, doctor.OK, read, "", "")
	case inSync < least:
		x.found("kafka-in-sync", name, doctor.Warning, read, "fewer than min.insync.replicas: nothing is taken", "start the brokers that are away: kafka-topics --bootstrap-server "+x.bootstrap+" --describe --under-min-isr-partitions")
	default:
		x.found("kafka-in-sync", name, doctor.Warning, read, "fewer copies are made than the topic asks for", "start the brokers that are away: kafka-topics --bootstrap-server "+x.bootstrap+" --describe --under-replicated-partitions")
	}
}

// elections may make a leader of a replica that lags.
func (x *examination) elections(name string, replicas int, c configured) {
	value := c.values["unclean.leader.election.enable"]
	severity := doctor.OK
	if value == "true" {
		severity = doctor.Unsafe
		x.unclean = true
		if replicas == 1 {
			severity = doctor.Note // there is none that lags
			x.unclean = false
		}
	}
	x.found("kafka-unclean-leader-election", name, severity, "unclean.leader.election.enable = "+value,
		"when every replica in sync is away, one that lags becomes the leader: acknowledged messages that it has not are lost", x.alter(name, "unclean.leader.election.enable=false"))
}

// cleaning is what removes messages, read or not.
func (x *examination) cleaning(name string, c configured) {
	policy := c.values["cleanup.policy"]
	read := "cleanup.policy = " + policy
	if strings.Contains(policy, "compact") {
		x.found("kafka-cleanup-policy", name, doctor.Warning, read, "older messages of a key are removed, whether consumers have read them or not, and a message without a key is refused", x.alter(name, "cleanup.policy=delete")+", unless the topic is a table")
	} else {
		x.found("kafka-cleanup-policy", name, doctor.OK, read, "", "")
	}
	if !strings.Contains(policy, "delete") {
		return
	}
	age, _ := strconv.ParseInt(c.values["retention.ms"], 10, 64)
	size, _ := strconv.ParseInt(c.values["retention.bytes"], 10, 64)
	read = fmt.Sprintf("retention.ms = %d, retention.bytes = %d", age, size)
	switch {
	case size > 0:
		x.found("kafka-retention", name, doctor.Warning, read, "a partition that is full loses its oldest messages, whether consumers have read them or not", x.alter(name, "retention.bytes=-1"))
	case age > 0:
		x.found("kafka-retention", name, doctor.Note, read, fmt.Sprintf("a consumer that is away for longer than %.3g days misses messages", float64(age)/86_400_000), x.alter(name, "retention.ms=-1")+", if that is not meant")
	default:
		x.found("kafka-retention", name, doctor.OK, read, "", "")
	}
}

// worth is what an acknowledgement survives, on the topic where it is worth least.
func (x *examination) worth() string {
	var text string
	switch {
	case !x.looked:
		return "not known: no topic's settings could be read"
	case x.of == 1 && x.flushed:
		return "the message is on the disk of one broker: it survives a crash, and not the loss of that disk"
	case x.of == 1:
		return "the message is in the memory of one broker: a crash of its machine loses it"
	case x.copies <= 1:
		text = fmt.Sprintf("the message is with one of %d brokers at least: the loss of the leader may lose it", x.of)
	case x.flushed:
		text = fmt.Sprintf("the message is on the disks of %d of %d brokers at least", x.copies, x.of)
	default:
		text = fmt.Sprintf("the message is with %d of %d brokers at least: it survives the loss of %d, and may not survive a power loss of all", x.copies, x.of, x.copies-1)
	}
	if x.unclean {
		text += "; and a replica that lags may become the leader, without it"
	}
	return text
}

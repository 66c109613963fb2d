package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// How long what is known of a topic counts, how often it is asked for at most, and how long an answer may take.
const (
	topicAge = 30 * time.Second
	askAgain = 50 * time.Millisecond
	askTime  = 5 * time.Second
)

// topic is what is known of one.
type topic struct {
	name    string
	id      [16]byte
	known   bool
	count   int // of its partitions
	lanes   []*lane
	limit   int // its max.message.bytes; 0: not known
	loaded  time.Time
	wanted  bool
	waiting []*flight // until it is known
	trouble trouble
	turn    struct{ lane, left int } // where messages without a key go
}

// checkTopic says why a name cannot be a topic's, or nil.
func checkTopic(name string) error {
	if name == "" || len(name) > 249 || name == "." || name == ".." {
		return fmt.Errorf("kafka: %q is no topic's name: 1 to 249 characters, neither . nor .. are names", name)
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("kafka: %q is no topic's name: A-Z, a-z, 0-9, '.', '_' and '-' are allowed", name)
		}
	}
	return nil
}

// topic returns what is known of a topic, and has it asked for again when that is old.
func (p *Publisher) topic(name string) *topic {
	t := p.topics[name]
	if t == nil {
		t = &topic{name: name}
		p.topics[name] = t
	}
	if t.known && p.now.Sub(t.loaded) > p.topicAge {
		p.want(t)
	}
	return t
}

// lacking is why a partition of the topic has no leader.
func (t *topic) lacking() (situation, error) {
	if !t.known {
		return t.trouble.why, t.trouble.cause
	}
	return noLeader, fmt.Errorf("topic %s: %w", t.name, errNoLeader)
}

// want has a topic asked for.
func (p *Publisher) want(t *topic) {
	if t.wanted || p.ended {
		return
	}
	t.wanted = true
	p.wanted = append(p.wanted, t)
	if !p.asking {
		p.asking = true
		p.group.Go(p.ask)
	}
}

// ask asks for topics until none is wanted.
func (p *Publisher) ask() {
	for {
		p.mu.Lock()
		names := make([]string, len(p.wanted))
		for i, t := range p.wanted {
			names[i] = t.name
		}
		if len(names) == 0 || p.ended {
			p.asking = false
			p.release()
			return
		}
		p.mu.Unlock()
		found, err := p.describe(p.life, names)
		p.mu.Lock()
		asked := p.wanted[:len(names):len(names)]
		p.wanted = append([]*topic(nil), p.wanted[len(names):]...)
		p.now = time.Now()
		for _, t := range asked {
			t.wanted = false
			if err != nil {
				p.unknown(t, notConnected, fmt.Errorf("kafka: ask for topic %s: %w", t.name, err))
				continue
			}
			p.learn(t, found[t.name])
		}
		p.release()
		select {
		case <-time.After(askAgain):
		case <-p.life.Done():
		}
	}
}

// description is what the cluster says of a topic.
type description struct {
	kmsg.MetadataResponseTopic
	limit int
	made  error // why it could not be made
}

// describe asks the cluster for topics, and makes those that are missing where that is asked for.
func (p *Publisher) describe(ctx context.Context, names []string) (map[string]description, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	found, err := p.metadata(ctx, names)
	if err != nil {
		return nil, err
	}
	var missing, there []string
	for _, name := range names {
		switch found[name].ErrorCode {
		case kerr.UnknownTopicOrPartition.Code:
			missing = append(missing, name)
		case 0:
			there = append(there, name)
		}
	}
	if p.cfg.CreateTopics && len(missing) > 0 {
		failed := p.create(ctx, missing)
		for _, name := range missing {
			d := found[name]
			d.made = failed[name]
			found[name] = d
		}
	}
	for name, limit := range p.limits(ctx, kmsg.ConfigResourceTypeTopic, "max.message.bytes", there) {
		d := found[name]
		d.limit = limit
		found[name] = d
	}
	return found, nil
}

func (p *Publisher) metadata(ctx context.Context, names []string) (map[string]description, error) {
	r := kmsg.NewPtrMetadataRequest()
	r.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		r.Topics = append(r.Topics, t)
	}
	answer, err := r.RequestWith(ctx, p.client)
	if err != nil {
		return nil, err
	}
	if len(answer.Brokers) == 0 {
		return nil, errors.New("the cluster has no brokers")
	}
	found := map[string]description{}
	for _, t := range answer.Topics {
		if t.Topic != nil {
			found[*t.Topic] = description{MetadataResponseTopic: t}
		}
	}
	p.mu.Lock()
	p.anyBroker = answer.Brokers[0].NodeID
	p.mu.Unlock()
	return found, nil
}

// create makes topics as the cluster makes them by default; it returns why one could not be made.
func (p *Publisher) create(ctx context.Context, names []string) map[string]error {
	r := kmsg.NewPtrCreateTopicsRequest()
	r.TimeoutMillis = int32(askTime / time.Millisecond)
	for _, name := range names {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = name, -1, -1
		r.Topics = append(r.Topics, t)
	}
	failed := map[string]error{}
	answer, err := r.RequestWith(ctx, p.client)
	if err != nil {
		for _, name := range names {
			failed[name] = err
		}
		return failed
	}
	for _, t := range answer.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			failed[t.Topic] = err
		}
	}
	return failed
}

// limits asks for a number in the configuration of topics or brokers. What may not be read is left out.
func (p *Publisher) limits(ctx context.Context, kind kmsg.ConfigResourceType, setting string, names []string) map[string]int {
	if len(names) == 0 {
		return nil
	}
	r := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range names {
		one := kmsg.NewDescribeConfigsRequestResource()
		one.ResourceType, one.ResourceName, one.ConfigNames = kind, name, []string{setting}
		r.Resources = append(r.Resources, one)
	}
	answer, err := r.RequestWith(ctx, p.client)
	if err != nil {
		return nil
	}
	limits := map[string]int{}
	for _, one := range answer.Resources {
		for _, c := range one.Configs {
			if n, err := strconv.Atoi(valueOf(c.Value)); err == nil && c.Name == setting {
				limits[one.ResourceName] = n
			}
		}
	}
	return limits
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// unknown says that a topic could not be asked for, or is not there. Its partitions stay as they are known.
func (p *Publisher) unknown(t *topic, why situation, cause error) {
	over := t.trouble.adds(p.now, why, cause)
	if t.known || len(t.waiting) == 0 {
		return
	}
	if !over {
		p.want(t)
		return
	}
	waiting := t.waiting
	t.waiting = nil
	for _, f := range waiting {
		f.waits = false
		if f.state == held {
			p.fail(f, why.result(cause))
		}
	}
}

// learn takes over what the cluster says of a topic.
func (p *Publisher) learn(t *topic, d description) {
	if err := kerr.ErrorForCode(d.ErrorCode); err != nil || len(d.Partitions) == 0 {
		why := noTopic
		switch d.ErrorCode {
		case kerr.InvalidTopicException.Code:
			why = badTopic
		case kerr.TopicAuthorizationFailed.Code:
			why = permissionDenied
		case kerr.UnknownTopicOrPartition.Code, 0:
		default:
			why = noLeader
		}
		t.known = false
		for _, ln := range t.lanes {
			ln.leader = -1
		}
		p.unknown(t, why, errors.Join(fmt.Errorf("kafka: topic %s: %w", t.name, err), d.made))
		return
	}
	if d.TopicID != t.id {
		for _, ln := range t.lanes { // it was deleted and made again
			if ln.batch == nil {
				p.spend(ln)
			}
		}
	}
	t.known, t.id, t.loaded, t.trouble = true, d.TopicID, p.now, trouble{}
	if d.limit > 0 {
		t.limit = d.limit
	}
	p.lead(t, d.Partitions)
	waiting := t.waiting
	t.waiting = nil
	for _, f := range waiting {
		f.waits = false
		switch {
		case f.state != held:
		case p.tx != nil:
			p.tx.nudge()
		case f.line != nil:
			p.advance(f.line)
		default:
			p.place(f)
		}
	}
}

// lead notes the partitions and their leaders.
func (p *Publisher) lead(t *topic, partitions []kmsg.MetadataResponseTopicPartition) {
	leaders := make(map[int32]int32, len(partitions))
	t.count = 0
	for _, one := range partitions {
		leaders[one.Partition] = one.Leader
		t.count = max(t.count, int(one.Partition)+1)
	}
	for i := range max(t.count, len(t.lanes)) {
		if i == len(t.lanes) {
			t.lanes = append(t.lanes, &lane{topic: t, partition: int32(i), leader: -1, most: batchRecords}) //nolint:gosec // a partition's number
		}
		leader, ok := leaders[int32(i)] //nolint:gosec // as above
		if !ok {
			leader = -1
		}
		ln := t.lanes[i]
		if ln.leader != leader {
			ln.leader = leader
			p.list(ln)
		}
	}
}

// askProducer has a new producer made for a lane, and for those that ask meanwhile. The lane's leader is asked: where that is
// silent there is nothing to send anyway.
func (p *Publisher) askProducer(ln *lane) {
	ln.listed = true // until there is one
	p.needy = append(p.needy, ln)
	if len(p.needy) > 1 || p.ended {
		return
	}
	leader := ln.leader
	p.group.Go(func() {
		made, why, err := p.newProducer(p.life, p.client.Broker(int(leader)))
		p.mu.Lock()
		defer p.release()
		p.now = time.Now()
		needy := p.needy
		p.needy = nil
		if err == nil {
			p.producer = made
		}
		for _, ln := range needy {
			if ln.listed = false; err != nil && ln.leader == leader {
				p.want(ln.topic)
				p.troubled(ln, why, err)
			} else {
				p.list(ln)
			}
		}
	})
}

// newProducer asks a broker for an identity.
func (p *Publisher) newProducer(ctx context.Context, from kmsg.Requestor) (*producer, situation, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r := kmsg.NewPtrInitProducerIDRequest()
	r.ProducerID, r.ProducerEpoch = -1, -1
	r.TransactionTimeoutMillis = int32(askTime / time.Millisecond) // not used; must not be 0
	answer, err := r.RequestWith(ctx, from)
	if err != nil {
		return nil, notConnected, fmt.Errorf("kafka: ask for a producer id: %w", err)
	}
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		why, _ := judge(answer.ErrorCode, true)
		if why != notAllowed {
			why = serverFailed
		}
		return nil, why, fmt.Errorf("kafka: ask for a producer id: %w", err)
	}
	return &producer{id: answer.ProducerID, epoch: answer.ProducerEpoch}, 0, nil
}

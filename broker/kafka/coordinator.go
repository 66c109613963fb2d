package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The requests of transactions, in the versions before KIP-890's second part (Kafka 4.0): partitions are added by a request of
// their own, and the epoch stays. They work on every Kafka since 2.5; whatever does not end as it should is followed by
// InitProducerId, which raises the epoch, so that nothing late of it can come into the next transaction.

// inVersion is a request in that version at most.
type inVersion[R kmsg.Request] struct {
	kmsg.Request
	most int16
}

func (r inVersion[R]) MaxVersion() int16 { return min(r.most, r.Request.MaxVersion()) }

// ask sends a request to a broker.
func ask[A any, R kmsg.Request](ctx context.Context, to *kgo.Broker, r R, most int16) (answer A, err error) {
	response, err := to.Request(ctx, inVersion[R]{r, most})
	if err != nil {
		return answer, err
	}
	answer, ok := response.(A)
	if !ok {
		return answer, errStrangeAnswer
	}
	return answer, nil
}

// failure is why a transaction did not come about.
type failure struct {
	why   situation
	cause error
}

func (f *failure) Error() string { return f.cause.Error() }
func (f *failure) Unwrap() error { return f.cause }

// failed is the failure that a code of the coordinator stands for; nil: none.
func failed(what, id string, code int16) error {
	cause := kerr.ErrorForCode(code)
	if cause == nil {
		return nil
	}
	why := serverFailed
	switch code {
	case 14, 15, 16: // COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
		why = noCoordinator
	case 53: // TRANSACTIONAL_ID_AUTHORIZATION_FAILED
		why = idNotAllowed
	case 50: // INVALID_TRANSACTION_TIMEOUT
		why = badTimeout
	case 47, 48, 49, 90, 120: // INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, TRANSACTION_ABORTABLE
		why = aborted
	}
	return &failure{why, fmt.Errorf("kafka: %s of %s: %w", what, id, cause)}
}

// unheardOf is the failure of a request without an answer.
func unheardOf(what, id string, err error) error {
	return &failure{notConnected, fmt.Errorf("kafka: %s of %s: %w", what, id, err)}
}

// whyOf is the situation that an error stands for.
func whyOf(err error) situation {
	if f := (*failure)(nil); errors.As(err, &f) {
		return f.why
	}
	return noProgress
}

// coordinatorOf finds the broker that coordinates the transactions of an id.
func (p *Publisher) coordinatorOf(ctx context.Context, id string) (*kgo.Broker, error) {
	r := kmsg.NewPtrFindCoordinatorRequest()
	r.CoordinatorType, r.CoordinatorKey, r.CoordinatorKeys = 1, id, []string{id}
	answer, err := r.RequestWith(ctx, p.client)
	if err != nil {
		return nil, unheardOf("find the coordinator", id, err)
	}
	code, node := answer.ErrorCode, answer.NodeID
	if len(answer.Coordinators) > 0 {
		code, node = answer.Coordinators[0].ErrorCode, answer.Coordinators[0].NodeID
	}
	if err := failed("find the coordinator", id, code); err != nil {
		return nil, err
	}
	return p.client.Broker(int(node)), nil
}

// How often what the coordinator cannot do yet is asked again: an earlier transaction is still being ended, mostly.
const (
	soonest = 2 * time.Millisecond
	latest  = 50 * time.Millisecond
)

// repeat calls f while it says that the coordinator cannot do it yet, until ctx ends.
func repeat(ctx context.Context, f func() (code int16, err error)) (int16, error) {
	for wait := soonest; ; wait = min(2*wait, latest) {
		code, err := f()
		if err != nil || code != kerr.ConcurrentTransactions.Code {
			return code, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return code, nil
		}
	}
}

// initProducer makes a new producer under a transactional id: an earlier one's open transaction is aborted, one that was being
// committed is, and whoever has the id can do nothing any more.
func (p *Publisher) initProducer(ctx context.Context, id string) (made *producer, at *kgo.Broker, err error) {
	const what = "begin with a producer"
	if at, err = p.coordinatorOf(ctx, id); err != nil {
		return nil, nil, err
	}
	r := kmsg.NewPtrInitProducerIDRequest()
	r.TransactionalID, r.ProducerID, r.ProducerEpoch = &id, -1, -1
	r.TransactionTimeoutMillis = int32(p.cfg.Transactions.Timeout / time.Millisecond) //nolint:gosec // 15 minutes at most
	code, err := repeat(ctx, func() (int16, error) {
		answer, err := ask[*kmsg.InitProducerIDResponse](ctx, at, r, 4)
		if err != nil {
			return 0, unheardOf(what, id, err)
		}
		made = &producer{id: answer.ProducerID, epoch: answer.ProducerEpoch}
		return answer.ErrorCode, nil
	})
	if err == nil {
		err = failed(what, id, code)
	}
	if err != nil {
		return nil, nil, err
	}
	return made, at, nil
}

// addPartitions says which partitions the transaction writes to. It returns the codes of those that may not be added.
func (t *transactor) addPartitions(ctx context.Context, lanes []*lane) (map[*lane]int16, error) {
	const what = "add partitions to the transaction"
	r := kmsg.NewPtrAddPartitionsToTxnRequest()
	r.TransactionalID, r.ProducerID, r.ProducerEpoch = t.id, t.producer.id, t.producer.epoch
	byTopic, byName := map[string]int{}, map[string]map[int32]*lane{}
	for _, ln := range lanes {
		name := ln.topic.name
		i, ok := byTopic[name]
		if !ok {
			i, byTopic[name], byName[name] = len(r.Topics), len(r.Topics), map[int32]*lane{}
			one := kmsg.NewAddPartitionsToTxnRequestTopic()
			one.Topic = name
			r.Topics = append(r.Topics, one)
		}
		byName[name][ln.partition] = ln
		r.Topics[i].Partitions = append(r.Topics[i].Partitions, ln.partition)
	}
	var refused map[*lane]int16
	code, err := repeat(ctx, func() (int16, error) {
		answer, err := ask[*kmsg.AddPartitionsToTxnResponse](ctx, t.coordinator, r, 3)
		if err != nil {
			return 0, unheardOf(what, t.id, err)
		}
		refused = map[*lane]int16{}
		for _, topic := range answer.Topics {
			for _, one := range topic.Partitions {
				switch ln := byName[topic.Topic][one.Partition]; {
				case one.ErrorCode == 0 || one.ErrorCode == kerr.OperationNotAttempted.Code:
				case one.ErrorCode == kerr.TopicAuthorizationFailed.Code || one.ErrorCode == kerr.UnknownTopicOrPartition.Code:
					refused[ln] = one.ErrorCode
				default:
					return one.ErrorCode, nil
				}
			}
		}
		return 0, nil
	})
	if err == nil {
		err = failed(what, t.id, code)
	}
	return refused, err
}

// commits is how often a commit is asked for before its outcome is looked up.
const commits = 4

// commit ends the transaction. After an error it may be committed or not, or be open.
func (t *transactor) commit(ctx context.Context) error {
	const what = "commit the transaction"
	r := kmsg.NewPtrEndTxnRequest()
	r.TransactionalID, r.ProducerID, r.ProducerEpoch, r.Commit = t.id, t.producer.id, t.producer.epoch, true
	var last error
	for range commits {
		code, err := repeat(ctx, func() (int16, error) {
			answer, err := ask[*kmsg.EndTxnResponse](ctx, t.coordinator, r, 3)
			if err != nil {
				return 0, unheardOf(what, t.id, err)
			}
			return answer.ErrorCode, nil
		})
		if err == nil {
			err = failed(what, t.id, code)
		}
		if err == nil {
			return nil
		}
		last = err
		if why := whyOf(err); why != notConnected && why != noCoordinator {
			return err
		}
		if found, err := t.p.coordinatorOf(ctx, t.id); err == nil {
			t.coordinator = found
		}
	}
	return last
}

// leave aborts what is open, so that readers do not wait for its timeout.
func (t *transactor) leave() {
	if !t.dangling {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	r := kmsg.NewPtrEndTxnRequest()
	r.TransactionalID, r.ProducerID, r.ProducerEpoch = t.id, t.open.id, t.open.epoch
	_, _ = ask[*kmsg.EndTxnResponse](ctx, t.coordinator, r, 3) // whoever claims the partitions aborts it otherwise
}

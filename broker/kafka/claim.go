package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// claimAll claims what is asked for, in this order:
//
//  1. a transaction says that we may publish the partitions, and that those who could are revoked;
//  2. their producers are fenced, which ends what they have open;
//  3. what they have published is read: nothing can be added any more;
//  4. a transaction takes that over, and their names away.
//
// What 3 reads is of those alone whom 2 has fenced: if somebody came in between, all of it is done again. And whoever comes
// after 1 finds us, and fences us before he reads, so that 4 comes before that or not at all.
// Whoever was fenced makes a new producer and reads the topic first: there it finds itself revoked, because 1 came before 2.
// Whoever dies in between has not taken anybody's name away, so that the next one fences the same and him.
func (t *transactor) claimAll(claims []*claim) error {
	wanted := map[int]bool{}
	for _, c := range claims {
		for _, partition := range c.partitions {
			wanted[partition] = true
		}
	}
	ctx, cancel := context.WithTimeout(t.p.life, max(askTime, t.p.cfg.AckTimeout))
	defer cancel()
	if err := t.claim(ctx, slices.Sorted(maps.Keys(wanted))); err != nil {
		return err
	}
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	for _, c := range claims {
		if i := slices.Index(t.claims, c); i >= 0 {
			t.claims = slices.Delete(t.claims, i, i+1)
		}
		c.done <- nil
	}
	t.trouble, t.tries = trouble{}, 0
	return nil
}

func (t *transactor) claim(ctx context.Context, partitions []int) error {
	v, err := t.progress.read(ctx)
	if err == nil {
		err = t.review(v)
	}
	if err != nil {
		return err
	}
	name := t.progress.base.name
	others := v.others(partitions, t.id)
	var changes []entry
	for _, p := range partitions {
		if v.owners[p][t.id] != isLive {
			changes = append(changes, entry{ownKey(name, p, t.id), []byte(isLive)})
		}
		for _, id := range others {
			if v.owners[p][id] == isLive {
				changes = append(changes, entry{ownKey(name, p, id), []byte(isRevoked)})
			}
		}
	}
	t.at("register")
	if err := t.write(ctx, changes); err != nil {
		return err
	}
	t.at("fence")
	for _, id := range others {
		if _, _, err := t.p.initProducer(ctx, id); err != nil {
			return err
		}
	}
	t.at("take over")
	if v, err = t.progress.read(ctx); err != nil {
		return err
	}
	return t.takeOver(ctx, v, partitions, others)
}

// takeOver reads what others have published of partitions, and makes it ours.
func (t *transactor) takeOver(ctx context.Context, v *view, partitions []int, others []string) error {
	name := t.progress.base.name
	var changes []entry
	taken := map[int]*holding{}
	for _, id := range v.others(partitions, t.id) {
		if !slices.Contains(others, id) { // it publishes, or will, and must not find its progress changed
			return &failure{aborted, fmt.Errorf("kafka: %s claims the same partitions of the outbox", id)}
		}
	}
	for _, p := range partitions {
		if v.owners[p][t.id] != isLive {
			return &failure{aborted, fmt.Errorf("kafka: partition %d of the outbox was claimed by somebody else meanwhile", p)}
		}
		for _, id := range others {
			if _, there := v.owners[p][id]; there {
				changes = append(changes, entry{ownKey(name, p, id), nil})
			}
		}
		if t.held[p] != nil { // ours all the time: what was settled is known here alone
			continue
		}
		l, err := v.ledger(p, time.Now())
		if err != nil {
			return err
		}
		taken[p] = &holding{now: ledger{}, old: l}
		if len(v.now[p]) > 0 {
			changes = append(changes, entry{oldKey(name, p), l.append(nil)}, entry{nowKey(name, p), nil})
		}
	}
	if err := t.write(ctx, changes); err != nil {
		return err
	}
	maps.Copy(t.held, taken)
	return nil
}

// write puts records into the progress topic, in a transaction of their own.
func (t *transactor) write(ctx context.Context, changes []entry) error {
	if len(changes) == 0 {
		return nil
	}
	tx := &transaction{}
	tx.note(t.p, changes)
	if err := t.send(ctx, tx); err != nil {
		return err
	}
	if err := t.commit(ctx); err != nil {
		return err
	}
	t.dangling = false
	return nil
}

// checkTransactions asks whether the progress topic is there and keeps what is written, and whether the transactional id may be
// used.
func (p *Publisher) checkTransactions(ctx context.Context) error {
	name := p.cfg.Transactions.Topic
	found, err := p.describeProgress(ctx, name)
	if err == nil && found.ErrorCode == 0 {
		err = p.unfit(ctx, name)
	}
	if err == nil {
		_, err = p.coordinatorOf(ctx, p.tx.id)
	}
	if f := (*failure)(nil); errors.As(err, &f) {
		v := verdicts[f.why]
		e := &outbox.Error{Code: v.code, Op: "check transactions", Detail: v.means, Err: err, Hint: "see whether the cluster is healthy"}
		if f.why == idNotAllowed {
			e.Hint = "let the relay's user use transactional ids that begin with " + p.cfg.Transactions.ID + "-: kafka-acls --add --allow-principal User:NAME --operation Write --operation Describe --transactional-id " +
				p.cfg.Transactions.ID + "- --resource-pattern-type prefixed"
		}
		if f.why == noCoordinator {
			e.Hint = "if it stays so: the topic __transaction_state cannot be made with fewer brokers than transaction.state.log.replication.factor (3), or its partition has no leader"
		}
		return e
	}
	return err
}

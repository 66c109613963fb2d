package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// holdTransaction keeps a transaction open that has written messages, each with a key of its own; then it is committed or
// rolled back, if it still can be.
func (r *run) holdTransaction(ctx, timed context.Context, s Step, f *Fault, rng *rand.Rand) error {
	f.Target = fmt.Sprintf("%d messages", s.Amount)
	tx, err := r.database.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	var all []message
	for i := range s.Amount {
		m := message{topic: topics[rng.IntN(len(topics))], payload: fmt.Appendf(nil, "held %d", i)}
		m.ID, m.Kind, m.N, m.Digest = outbox.NewID().String(), Held, 1, digest(m.payload)
		m.Key = "held-" + m.ID
		all = append(all, m)
	}
	if err := insert(ctx, tx, all); err != nil {
		return err
	}
	pause(timed, s.For)
	if !s.Flip {
		f.Detail = "rolled back"
		return nil
	}
	if f.Detail = "committed"; tx.Commit() != nil {
		f.Detail = "the database ended it"
	}
	return nil
}

// holdSnapshot keeps a transaction open that reads.
func (r *run) holdSnapshot(ctx, timed context.Context, s Step, f *Fault) error {
	f.Target = r.Store
	conn, err := r.database.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	begin := "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
	if r.Store == SQLite {
		begin = "BEGIN DEFERRED"
	}
	if _, err := conn.ExecContext(ctx, begin); err != nil {
		return err
	}
	var n int
	err = conn.QueryRowContext(ctx, `SELECT count(*) FROM (SELECT 1 FROM outbox_messages LIMIT 10) AS part`).Scan(&n)
	pause(timed, s.For)
	_, ended := conn.ExecContext(ctx, "ROLLBACK")
	if ended != nil {
		f.Detail = "the database ended it"
	}
	return err
}

// storm does many acts of an operator within the step's time. That some are refused, or fail while the database is away, is part of it.
func (r *run) storm(timed context.Context, s Step, f *Fault, rng *rand.Rand) error {
	if s.Kind != PauseStorm { // something has to be dead
		_ = r.writers[rng.IntN(len(r.writers))].ask(Oversize, 3)
	}
	act := map[Kind]func(context.Context, *rand.Rand) error{
		PauseStorm: r.pauseSomething, RequeueStorm: r.requeueSome, DiscardStorm: r.discardSome,
	}[s.Kind]
	ended := map[bool]int{}
	for range s.Amount {
		tally(ended, act(timed, rng))
		if !pause(timed, s.For/time.Duration(s.Amount)) {
			break
		}
	}
	f.Detail = fmt.Sprintf("%d acts done, %d refused", ended[true], ended[false])
	return nil
}

// tally counts acts by whether they were done.
func tally(done map[bool]int, err error) { done[err == nil]++ }

// act notes an act and its end.
func (r *run) act(a Act, err error) error {
	if err != nil {
		a.Error = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acts = append(r.acts, a)
	return err
}

func (r *run) pauseSomething(ctx context.Context, rng *rand.Rand) error {
	p := store.PauseAct{Sink: sinkName, Kind: store.PauseTopic, Name: topics[rng.IntN(len(topics))], Actor: operator, Reason: "a storm"}
	switch rng.IntN(10) {
	case 0:
		p.Kind, p.Name = store.PauseSink, ""
	case 1, 2, 3, 4:
		p.Kind, p.Name = store.PauseKey, fmt.Sprintf("w%d-%d-%d", 1+rng.IntN(2), rng.IntN(clerks), rng.IntN(12))
	case 5:
		p.Name = "chaos.>"
	}
	a := Act{At: time.Now().UTC(), Action: "pause", Name: string(p.Kind) + " " + p.Name}
	if rng.IntN(3) == 0 {
		a.Action = "resume"
		return r.act(a, r.database.admin.Resume(ctx, p))
	}
	p.For = 100*time.Millisecond + time.Duration(rng.Int64N(int64(2*time.Second)))
	_, err := r.database.admin.Pause(ctx, p)
	return r.act(a, err)
}

func (r *run) requeueSome(ctx context.Context, rng *rand.Rand) error {
	list, err := r.database.admin.Dead(ctx, store.Filter{Sink: sinkName, Limit: 50})
	if err != nil || len(list.Dead) == 0 {
		return errors.Join(err, errNothing)
	}
	id := list.Dead[rng.IntN(len(list.Dead))].ID
	a := Act{At: time.Now().UTC(), Action: "requeue", ID: id.String()}
	return r.act(a, r.database.admin.Requeue(ctx, store.Act{Sink: sinkName, ID: id, Actor: operator, Reason: "a storm"}, false))
}

var errNothing = errors.New("there is nothing to act on")

// discardSome discards a dead letter, or now and then a parked message.
func (r *run) discardSome(ctx context.Context, rng *rand.Rand) error {
	if rng.IntN(8) == 0 {
		list, err := r.database.admin.Messages(ctx, store.Filter{Sink: sinkName, State: store.StateParked, Limit: 50})
		if err != nil || len(list.Messages) == 0 {
			return errors.Join(err, errNothing)
		}
		return r.discard(ctx, list.Messages[rng.IntN(len(list.Messages))].ID)
	}
	list, err := r.database.admin.Dead(ctx, store.Filter{Sink: sinkName, Limit: 50})
	if err != nil || len(list.Dead) == 0 {
		return errors.Join(err, errNothing)
	}
	r.noteDead(len(list.Dead))
	return r.discard(ctx, list.Dead[rng.IntN(len(list.Dead))].ID)
}

func (r *run) noteDead(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meta.DeadLetters = max(r.meta.DeadLetters, n)
}

func (r *run) discard(ctx context.Context, id outbox.ID) error {
	a := Act{At: time.Now().UTC(), Action: "discard", ID: id.String()}
	return r.act(a, r.database.admin.Discard(ctx, store.Act{Sink: sinkName, ID: id, Actor: operator, Reason: "it cannot be published"}))
}

// resumeAll ends every pause.
func (r *run) resumeAll(ctx context.Context) error {
	pauses, err := r.database.admin.Pauses(ctx, sinkName)
	for _, p := range pauses {
		a := Act{At: time.Now().UTC(), Action: "resume", Name: string(p.Kind) + " " + p.Name}
		one := r.act(a, r.database.admin.Resume(ctx, store.PauseAct{Sink: sinkName, Kind: p.Kind, Name: p.Name, Actor: operator}))
		if !errors.Is(one, store.ErrNotFound) { // it has ended by itself
			err = errors.Join(err, one)
		}
	}
	return err
}

// discardDead discards every dead letter, and says how many there were.
func (r *run) discardDead(ctx context.Context) (int, error) {
	list, err := r.database.admin.Dead(ctx, store.Filter{Sink: sinkName, Limit: 1000})
	if err != nil {
		return 0, err
	}
	r.noteDead(len(list.Dead))
	for i := range list.Dead {
		err = errors.Join(err, r.discard(ctx, list.Dead[i].ID))
	}
	return len(list.Dead), err
}

package outbox

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Add hands a message to the transaction that ctx belongs to, which writes it when the function that runs in it returns
// without an error: behind what that function wrote, and in the order of Add. A store's InTx makes such a context, for
// example that of github.com/onwardhq/onward/store/postgres; outboxtest.Recorder does for unit tests.
//
// Add asks no database. It returns what the transaction's writer has against the message itself (see Rules.Prepare), and
// the transaction goes on without it then. The message and its bytes may be used again at once. Add is safe for
// concurrent use; messages of several goroutines come in any order.
//
// Outside of such a function, and after it has returned, Add is ErrNoTransaction.
func Add(ctx context.Context, m Message) error {
	add, ok := ctx.Value(adderKey{}).(func(context.Context, Message) error)
	if !ok {
		return &Error{
			Code: ErrNoTransaction.Code, Op: "add message", Detail: "the context belongs to no transaction",
			Hint: "call Add with the context that InTx gives to its function",
		}
	}
	return add(ctx, m)
}

type adderKey struct{}

// WithAdder returns a context whose messages of Add go to add, which is called from the goroutines that call Add. It is
// for stores and tests.
func WithAdder(ctx context.Context, add func(ctx context.Context, m Message) error) context.Context {
	return context.WithValue(ctx, adderKey{}, add)
}

// Added keeps the messages of Add until their transaction writes them. It is for stores.
type Added struct {
	rules Rules
	mu    sync.Mutex
	ms    []Message
	ended bool
}

// Collect returns a context whose messages of Add are kept, each after the rules' Prepare.
func Collect(ctx context.Context, rules Rules) (context.Context, *Added) {
	a := &Added{rules: rules}
	return WithAdder(ctx, a.add), a
}

func (a *Added) add(ctx context.Context, m Message) error {
	m, err := a.rules.Prepare(ctx, m)
	if err != nil {
		return err
	}
	m.Payload, m.Headers = slices.Clone(m.Payload), maps.Clone(m.Headers)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return &Error{
			Code: ErrNoTransaction.Code, Op: "add message", Detail: "the transaction's function has returned",
			Hint: "wait for the goroutines that add before it returns",
		}
	}
	a.ms = append(a.ms, m)
	return nil
}

// End returns the messages in the order of Add, with ids, and takes no more.
func (a *Added) End() []Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	ms := a.ms
	a.ms, a.ended = nil, true
	return ms
}

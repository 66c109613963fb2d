package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/onwardhq/onward/outbox"
)

func TestAddOutsideOfATransactionIsRefused(t *testing.T) {
	t.Parallel()
	err := outbox.Add(t.Context(), message())
	if !errors.Is(err, outbox.ErrNoTransaction) || outbox.Hint(err) == "" {
		t.Errorf("%v, hint %q", err, outbox.Hint(err))
	}
}

func TestAddedMessagesKeepTheirOrderAndTheirBytes(t *testing.T) {
	t.Parallel()
	ctx, added := outbox.Collect(t.Context(), outbox.Rules{Enrich: func(_ context.Context, m *outbox.Message) { m.CorrelationID += "c" }})
	payload, headers := []byte("0"), map[string]string{"n": "0"}
	for n := range 5 {
		payload[0], headers["n"] = byte('0'+n), fmt.Sprint(n)
		if err := outbox.Add(ctx, outbox.Message{Topic: "t", Type: fmt.Sprint(n), Payload: payload, Headers: headers}); err != nil {
			t.Fatal(err)
		}
	}
	payload[0], headers["n"] = 'x', "x"
	ms := added.End()
	for n, m := range ms {
		if want := fmt.Sprint(n); m.Type != want || string(m.Payload) != want || m.Headers["n"] != want || m.CorrelationID != "c" || m.ID.IsZero() {
			t.Errorf("message %d is %+v", n, m)
		}
	}
	if len(ms) != 5 {
		t.Errorf("%d messages, want 5", len(ms))
	}
}

func TestAddReturnsWhatIsWrongWithTheMessage(t *testing.T) {
	t.Parallel()
	ctx, added := outbox.Collect(t.Context(), outbox.Rules{RequireKey: []outbox.Pattern{"orders"}})
	for want, m := range map[*outbox.Error]outbox.Message{
		outbox.ErrTypeRequired: {Topic: "t"}, outbox.ErrKeyRequired: {Topic: "orders", Type: "t"},
		outbox.ErrHeaderReserved: {Topic: "t", Type: "t", Headers: map[string]string{"onward-id": "1"}},
	} {
		refused(t, string(want.Code), outbox.Add(ctx, m), want)
	}
	if ms := added.End(); len(ms) != 0 {
		t.Errorf("%v were kept", ms)
	}
}

// An Add that comes too late is told so: it either is among the messages, or has an error.
func TestAddAfterTheEndIsRefused(t *testing.T) {
	t.Parallel()
	ctx, added := outbox.Collect(t.Context(), outbox.Rules{})
	const adders, each = 8, 200
	var mu sync.Mutex
	var taken []string
	var group sync.WaitGroup
	half := make(chan struct{}, adders)
	for a := range adders {
		group.Go(func() {
			for n := range each {
				if n == each/2 {
					half <- struct{}{}
				}
				id := fmt.Sprint(a, "-", n)
				err := outbox.Add(ctx, outbox.Message{Topic: "t", Type: id})
				if err == nil {
					mu.Lock()
					taken = append(taken, id)
					mu.Unlock()
				} else if !errors.Is(err, outbox.ErrNoTransaction) {
					t.Error(err)
				}
			}
		})
	}
	for range adders {
		<-half
	}
	ms := added.End()
	group.Wait()
	got := make([]string, len(ms))
	for i, m := range ms {
		got[i] = m.Type
	}
	slices.Sort(got)
	slices.Sort(taken)
	if !slices.Equal(got, taken) || len(got) < adders*each/2 {
		t.Errorf("%d messages were added, %d said to be", len(got), len(taken))
	}
	if err := outbox.Add(ctx, message()); !errors.Is(err, outbox.ErrNoTransaction) || len(added.End()) != 0 {
		t.Errorf("after the end: %v", err)
	}
}

func TestTheInnermostTransactionTakesTheMessage(t *testing.T) {
	t.Parallel()
	outer, first := outbox.Collect(t.Context(), outbox.Rules{})
	inner, second := outbox.Collect(outer, outbox.Rules{})
	if err := errors.Join(outbox.Add(inner, message()), outbox.Add(outer, message()), outbox.Add(inner, message())); err != nil {
		t.Fatal(err)
	}
	if a, b := len(first.End()), len(second.End()); a != 1 || b != 2 {
		t.Errorf("the outer one has %d, the inner one %d, want 1 and 2", a, b)
	}
}

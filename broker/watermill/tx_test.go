package watermill

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/outbox/outboxtest"
)

func published(t *testing.T, c TxConfig, topic string, ms ...*message.Message) ([]outbox.Record, error) {
	t.Helper()
	rec := outboxtest.NewRecorder[*sql.Tx](outboxtest.RecorderConfig{})
	err := NewTxPublisher(t.Context(), nil, rec, c).Publish(topic, ms...)
	return rec.Records(), err
}

// single is a writer that says when two goroutines use it at once.
type single struct {
	*outboxtest.Recorder[*sql.Tx]
	t    *testing.T
	busy sync.Mutex
}

func (s *single) WriteAll(ctx context.Context, tx *sql.Tx, ms []outbox.Message) ([]outbox.Receipt, error) {
	if !s.busy.TryLock() {
		s.t.Error("two goroutines use the transaction at once")
		s.busy.Lock()
	}
	defer s.busy.Unlock()
	for range 100 {
		runtime.Gosched() // the others come as far as they can
	}
	return s.Recorder.WriteAll(ctx, tx, ms)
}

func watermillMessage(uuid string, metadata ...string) *message.Message {
	m := message.NewMessage(uuid, []byte("payload"))
	for i := 0; i < len(metadata); i += 2 {
		m.Metadata.Set(metadata[i], metadata[i+1])
	}
	return m
}

func TestEachPartOfAMessageHasItsPlaceInTheOutbox(t *testing.T) {
	t.Parallel()
	const uuid = "01020304-0506-7008-890a-0b0c0d0e0f10"
	for name, c := range map[string]struct {
		config  TxConfig
		in      *message.Message
		want    outbox.Message
		newID   bool
		headers map[string]string
	}{
		"bare": {
			in:   watermillMessage(uuid),
			want: outbox.Message{Type: "orders", ContentType: outbox.DefaultContentType},
		},
		"of cqrs, with a correlation id": {
			in:      watermillMessage(uuid, "name", "OrderPaid", "correlation_id", "checkout-881", "zone", "b"),
			want:    outbox.Message{Type: "OrderPaid", ContentType: outbox.DefaultContentType, CorrelationID: "checkout-881"},
			headers: map[string]string{"name": "OrderPaid", "correlation_id": "checkout-881", "zone": "b"},
		},
		"content type of the metadata": {
			config: TxConfig{ContentType: "text/plain"},
			in:     watermillMessage(uuid, "Content-Type", "application/json"),
			want:   outbox.Message{Type: "orders", ContentType: "application/json"},
		},
		"content type of the config, and a key of the metadata": {
			config:  TxConfig{ContentType: "text/plain", KeyMetadata: "order"},
			in:      watermillMessage(uuid, "order", "order-7"),
			want:    outbox.Message{Type: "orders", ContentType: "text/plain", Key: "order-7"},
			headers: map[string]string{"order": "order-7"},
		},
		"functions": {
			config: TxConfig{
				Key:  func(topic string, m *message.Message) string { return topic + "/" + m.Metadata.Get("order") },
				Type: func(topic string, m *message.Message) string { return topic + string(m.Payload) },
			},
			in:      watermillMessage(uuid, "order", "7", "name", "ignored"),
			want:    outbox.Message{Type: "orderspayload", ContentType: outbox.DefaultContentType, Key: "orders/7"},
			headers: map[string]string{"order": "7", "name": "ignored"},
		},
		"a UUID that is none": {
			in:      watermillMessage("KtUuS3Fqs2zNxpdmT9RJbN"),
			want:    outbox.Message{Type: "orders", ContentType: outbox.DefaultContentType},
			newID:   true,
			headers: map[string]string{UUIDMetadata: "KtUuS3Fqs2zNxpdmT9RJbN"},
		},
		"no UUID": {
			in:    watermillMessage(""),
			want:  outbox.Message{Type: "orders", ContentType: outbox.DefaultContentType},
			newID: true,
		},
	} {
		before := maps.Clone(c.in.Metadata)
		written, err := published(t, c.config, "orders", c.in)
		if err != nil || len(written) != 1 {
			t.Errorf("%s: %d written, %v", name, len(written), err)
			continue
		}
		got := written[0].Message
		if got.ID.String() == uuid == c.newID || got.ID.IsZero() {
			t.Errorf("%s: the id is %s", name, got.ID)
		}
		if !maps.Equal(got.Headers, c.headers) {
			t.Errorf("%s: headers %v, want %v", name, got.Headers, c.headers)
		}
		c.want.Topic, c.want.Payload = "orders", []byte("payload")
		got.ID, got.Headers = outbox.ID{}, nil
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, c.want)
		}
		if !maps.Equal(before, c.in.Metadata) {
			t.Errorf("%s: the caller's metadata are %v now", name, c.in.Metadata)
		}
	}
}

func TestMetadataThatCannotBeHeadersAreRefusedByName(t *testing.T) {
	t.Parallel()
	for metadata, want := range map[string]*outbox.Error{
		"onward-id": outbox.ErrHeaderReserved, "Nats-Msg-Id": outbox.ErrHeaderReserved, "ce_type": outbox.ErrHeaderReserved, "of two words": outbox.ErrHeaderInvalid,
	} {
		written, err := published(t, TxConfig{}, "orders", watermillMessage(watermill.NewUUID()), watermillMessage(watermill.NewUUID(), metadata, "x"))
		if !errors.Is(err, want) || !strings.Contains(err.Error(), metadata) || outbox.Hint(err) == "" {
			t.Errorf("%s: %v (hint %q)", metadata, err, outbox.Hint(err))
		}
		if len(written) != 0 {
			t.Errorf("%s: %d messages were written with a bad one", metadata, len(written))
		}
	}
}

func TestMessagesAreWrittenInTheirOrderOneCallAfterTheOther(t *testing.T) {
	t.Parallel()
	rec := &single{Recorder: outboxtest.NewRecorder[*sql.Tx](outboxtest.RecorderConfig{}), t: t}
	p := NewTxPublisher(t.Context(), nil, rec, TxConfig{})
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for n := range 20 {
				if err := p.Publish(fmt.Sprint("t", g), watermillMessage("", "n", fmt.Sprint(2*n)), watermillMessage("", "n", fmt.Sprint(2*n+1))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	numbers := map[string][]string{}
	for _, m := range rec.Records() {
		numbers[m.Topic] = append(numbers[m.Topic], m.Headers["n"])
	}
	var want []string
	for n := range 40 {
		want = append(want, fmt.Sprint(n))
	}
	for g := range 8 {
		if got := numbers[fmt.Sprint("t", g)]; !slices.Equal(got, want) {
			t.Errorf("of goroutine %d: %v", g, got)
		}
	}
}

func TestATxPublisherThatIsClosedOrBadlyMadeWritesNothing(t *testing.T) {
	t.Parallel()
	rec := outboxtest.NewRecorder[*sql.Tx](outboxtest.RecorderConfig{})
	p := NewTxPublisher(t.Context(), nil, rec, TxConfig{})
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	if err := p.Publish("orders", watermillMessage("")); !errors.Is(err, outbox.ErrNoTransaction) || outbox.Hint(err) == "" {
		t.Errorf("closed: %v", err)
	}
	both := TxConfig{KeyMetadata: "k", Key: func(string, *message.Message) string { return "" }}
	if err := NewTxPublisher(t.Context(), nil, rec, both).Publish("orders", watermillMessage("")); !errors.Is(err, outbox.ErrConfigInvalid) {
		t.Errorf("two keys: %v", err)
	}
	if err := NewTxPublisher[*sql.Tx](t.Context(), nil, nil, TxConfig{}).Publish("orders", watermillMessage("")); !errors.Is(err, outbox.ErrConfigInvalid) {
		t.Errorf("no writer: %v", err)
	}
	p = NewTxPublisher(t.Context(), nil, rec, TxConfig{})
	if err := p.Publish("orders", watermillMessage(""), nil); !errors.Is(err, outbox.ErrFieldInvalid) {
		t.Errorf("a message that is nil: %v", err)
	}
	if err := p.Publish("orders"); err != nil {
		t.Errorf("no message: %v", err)
	}
	if n := len(rec.Records()); n != 0 {
		t.Errorf("%d messages were written", n)
	}
}

package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/outbox/outboxtest"
)

// tx stands for pgx.Tx or *sql.Tx.
type tx any

func message(kind string) outbox.Message {
	return outbox.Message{Topic: "orders", Key: "7", Type: kind}
}

func TestARecorderKeepsMessagesInOrder(t *testing.T) {
	t.Parallel()
	rec := outboxtest.NewRecorder[tx](outboxtest.RecorderConfig{})
	m := outbox.Message{Topic: "orders", Key: "7", Type: "A", Payload: []byte("a"), Headers: map[string]string{"h": "a"}}
	first, err := rec.Write(t.Context(), nil, m)
	if err != nil {
		t.Fatal(err)
	}
	m.Payload[0], m.Headers["h"] = 'x', "x"
	rest, err := rec.WriteAll(t.Context(), nil, []outbox.Message{message("B"), message("C")})
	if err != nil {
		t.Fatal(err)
	}
	if none, err := rec.WriteAll(t.Context(), nil, nil); err != nil || none != nil {
		t.Errorf("none: %v, %v", none, err)
	}
	records := rec.Records()
	for i, receipt := range append([]outbox.Receipt{first}, rest...) {
		r := records[i]
		if r.Type != string(rune('A'+i)) || r.Seq != int64(i+1) || r.ID.IsZero() || r.Partition != outbox.PartitionOf("7", r.ID, 64) || r.ContentType == "" || r.CreatedAt.IsZero() {
			t.Errorf("record %d is %+v", i, r)
		}
		if (receipt != outbox.Receipt{ID: r.ID, Partition: r.Partition, Seq: r.Seq}) {
			t.Errorf("receipt %d is %v", i, receipt)
		}
	}
	records[0].Payload[0], records[0].Headers["h"] = 'y', "y"
	if r := rec.Records()[0]; string(r.Payload) != "a" || r.Headers["h"] != "a" {
		t.Errorf("%+v was changed from outside", r)
	}
	rec.Reset()
	if again, err := rec.Write(t.Context(), nil, outbox.Message{ID: first.ID, Topic: "t", Type: "t"}); err != nil || again.Seq != 4 || len(rec.Records()) != 1 {
		t.Errorf("after Reset: %v, %v", again, err)
	}
}

func TestARecorderRefusesWhatAWriterRefuses(t *testing.T) {
	t.Parallel()
	rec := outboxtest.NewRecorder[tx](outboxtest.RecorderConfig{Rules: outbox.Rules{RequireKey: []outbox.Pattern{"orders"}, MaxPayload: 10}})
	there := message("there")
	there.ID = outbox.NewID()
	if _, err := rec.Write(t.Context(), nil, there); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	twice := message("twice")
	twice.ID = outbox.NewID()
	for _, c := range []struct {
		name string
		ctx  context.Context
		bad  []outbox.Message
		want error
	}{
		{"no topic", t.Context(), []outbox.Message{{Type: "t"}}, outbox.ErrTopicRequired},
		{"no key", t.Context(), []outbox.Message{{Topic: "orders", Type: "t"}}, outbox.ErrKeyRequired},
		{"reserved header", t.Context(), []outbox.Message{{Topic: "t", Type: "t", Headers: map[string]string{"Onward-Id": "1"}}}, outbox.ErrHeaderReserved},
		{"large payload", t.Context(), []outbox.Message{{Topic: "t", Type: "t", Payload: make([]byte, 11)}}, outbox.ErrPayloadTooLarge},
		{"long topic", t.Context(), []outbox.Message{{Topic: strings.Repeat("t", 256), Type: "t"}}, outbox.ErrFieldTooLong},
		{"year 10000", t.Context(), []outbox.Message{{Topic: "t", Type: "t", AvailableAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}}, outbox.ErrFieldInvalid},
		{"duplicate", t.Context(), []outbox.Message{there}, outbox.ErrDuplicateMessage},
		{"twice in one write", t.Context(), []outbox.Message{twice, twice}, outbox.ErrDuplicateMessage},
		{"cancelled", cancelled, []outbox.Message{message("t")}, context.Canceled},
	} {
		if _, err := rec.WriteAll(c.ctx, nil, append([]outbox.Message{message("good")}, c.bad...)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if n := len(rec.Records()); n != 1 {
		t.Errorf("%d records: one bad message refuses all", n)
	}
	broken := errors.New("connection reset")
	rec.Fail(broken)
	if _, err := rec.Write(t.Context(), nil, message("t")); !errors.Is(err, broken) {
		t.Errorf("%v, want what Fail was told", err)
	}
	rec.Fail(nil)
	if _, err := rec.Write(t.Context(), nil, message("t")); err != nil {
		t.Error(err)
	}
	bad := outboxtest.NewRecorder[tx](outboxtest.RecorderConfig{Rules: outbox.Rules{RequireKey: []outbox.Pattern{"a..b"}}})
	if _, err := bad.Write(t.Context(), nil, message("t")); !errors.Is(err, outbox.ErrConfigInvalid) {
		t.Errorf("bad rules: %v", err)
	}
}

func TestARecorderIgnoresDuplicatesWhereItIsTold(t *testing.T) {
	t.Parallel()
	rec := outboxtest.NewRecorder[tx](outboxtest.RecorderConfig{IgnoreDuplicates: true})
	m := message("first")
	m.ID = outbox.NewID()
	first, err := rec.Write(t.Context(), nil, m)
	if err != nil {
		t.Fatal(err)
	}
	m.Type = "second"
	again, err := rec.WriteAll(t.Context(), nil, []outbox.Message{m, message("other"), m})
	if err != nil || again[0] != first || again[2] != first || again[1] == first {
		t.Errorf("%v, %v, want the first receipt twice", again, err)
	}
	outboxtest.RequireWritten(t, rec, nil, message("first"), message("other"))
}

func TestGoroutinesShareARecorder(t *testing.T) {
	t.Parallel()
	rec := outboxtest.NewRecorder[tx](outboxtest.RecorderConfig{})
	ctx := rec.Context(t.Context())
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				if _, err := rec.Write(ctx, nil, message("written")); err != nil {
					t.Error(err)
				}
				if err := outbox.Add(ctx, message("added")); err != nil {
					t.Error(err)
				}
				rec.Records()
			}
		})
	}
	group.Wait()
	for i, r := range rec.Records() {
		if r.Seq != int64(i+1) {
			t.Fatalf("record %d has seq %d", i, r.Seq)
		}
	}
	if n := len(rec.Records()); n != 800 {
		t.Errorf("%d records, want 800", n)
	}
}

func TestARecordersContextTakesAddedMessages(t *testing.T) {
	t.Parallel()
	rec := outboxtest.NewRecorder[tx](outboxtest.RecorderConfig{Rules: outbox.Rules{RequireKey: []outbox.Pattern{"orders"}}})
	ctx := rec.Context(t.Context())
	if err := outbox.Add(ctx, outbox.Message{Topic: "orders", Type: "t"}); !errors.Is(err, outbox.ErrKeyRequired) {
		t.Errorf("%v", err)
	}
	if err := outbox.Add(ctx, message("A")); err != nil {
		t.Error(err)
	}
	outboxtest.RequireWritten(t, rec, nil, message("A"))
}

// failing is a test that notes how it ended.
type failing struct {
	*testing.T
	text string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// says runs RequireWritten and returns what it said, "" when it held.
func says(t *testing.T, source outboxtest.Source[tx], want ...outbox.Message) string {
	f := &failing{T: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		outboxtest.RequireWritten(f, source, nil, want...)
	}()
	<-ended
	return f.text
}

func TestRequireWrittenComparesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	full := outbox.Message{
		ID: outbox.NewID(), Topic: "orders", Key: "7", Type: "OrderPaid", ContentType: "application/json", Scope: "eu", CorrelationID: "co",
		CausationID: "ca", AggregateType: "at", AggregateID: "ai", EventID: "e", Payload: []byte(`{"total": 12.0, "id": 10000000000000001}`),
		Headers: map[string]string{"zone": "eu", "other": ""}, AvailableAt: time.Date(2031, 2, 3, 4, 5, 6, 0, time.FixedZone("x", 3600)),
	}
	rec := outboxtest.NewRecorder[tx](outboxtest.RecorderConfig{})
	if _, err := rec.Write(t.Context(), nil, full); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]outbox.Message{
		"everything": full, "nothing": {}, "one field": {Type: "OrderPaid"}, "one header": {Headers: map[string]string{"zone": "eu"}},
		"JSON in another order": {Payload: []byte(`{"id":10000000000000001,"total":12.0}`)}, "an empty header": {Headers: map[string]string{"other": ""}},
	} {
		if text := says(t, rec, want); text != "" {
			t.Errorf("%s: %s", name, text)
		}
	}
	fields := reflect.TypeFor[outbox.Message]()
	for i := range fields.NumField() {
		want := outbox.Message{}
		f := reflect.ValueOf(&want).Elem().Field(i)
		switch f.Interface().(type) {
		case string:
			f.SetString("another")
		case outbox.ID:
			f.Set(reflect.ValueOf(outbox.NewID()))
		case []byte:
			f.SetBytes([]byte(`{"total": 12.0, "id": 10000000000000000}`))
		case map[string]string:
			f.Set(reflect.ValueOf(map[string]string{"Zone": "eu"}))
		case time.Time:
			f.Set(reflect.ValueOf(full.AvailableAt.Add(time.Second)))
		default:
			t.Fatalf("no case for %s", fields.Field(i).Name)
		}
		if text := says(t, rec, want); !strings.Contains(strings.ToLower(text), strings.TrimSuffix(strings.ToLower(fields.Field(i).Name), "s")) {
			t.Errorf("another %s: %q", fields.Field(i).Name, text)
		}
	}
	for name, want := range map[string]outbox.Message{
		"an empty payload": {Payload: []byte{}}, "a payload that is no JSON": {Payload: []byte("{")}, "a header's value": {Headers: map[string]string{"zone": ""}},
	} {
		if text := says(t, rec, want); text == "" {
			t.Errorf("%s: it held", name)
		}
	}
}

func TestRequireWrittenSaysWhatIsDifferent(t *testing.T) {
	t.Parallel()
	rec := outboxtest.NewRecorder[tx](outboxtest.RecorderConfig{})
	b := message("B")
	b.Payload, b.Headers = []byte(`{"total":12}`), map[string]string{"zone": "eu"}
	if _, err := rec.WriteAll(t.Context(), nil, []outbox.Message{message("A"), b, message("C"), message("E"), message("F")}); err != nil {
		t.Fatal(err)
	}
	wanted := message("B")
	wanted.Key, wanted.Payload, wanted.Headers = "8", []byte(`{"total":13}`), map[string]string{"zone": "us", "region": "x"}
	got := says(t, rec, message("A"), wanted, message("C"), message("D"), message("E"))
	const want = `the transaction wrote 5 messages, want 5:
  A  on orders  key "7"
~ B  on orders  key "7"  {"total":12}
    Key: wrote "7", want "8"
    Payload: wrote {"total":12}, want {"total":13}
    header region: wrote none, want "x"
    header zone: wrote "eu", want "us"
  C  on orders  key "7"
- D  on orders  key "7"   (was not written)
  E  on orders  key "7"
+ F  on orders  key "7"   (was not wanted)`
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if text := says(t, rec); !strings.HasPrefix(text, "the transaction wrote 5 messages, want 0:\n+ A") {
		t.Errorf("nothing wanted: %s", text)
	}
	if text := says(t, rec, message("B"), message("A"), message("C"), message("E"), message("F")); text == "" {
		t.Error("another order: it held")
	}
	if text := says(t, broken{}, message("A")); !strings.Contains(text, "connection reset") {
		t.Errorf("a source that fails: %q", text)
	}
}

type broken struct{}

func (broken) Written(context.Context, tx) ([]outbox.Record, error) {
	return nil, errors.New("connection reset")
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

const (
	written = `SELECT count(*) FROM outbox_messages`
	relays  = `SELECT count(*) FROM outbox_relays`
)

func TestOrdersArePublishedInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.migrate, w.relay = true, true
	service := w.start()
	const orders = 40
	receipts := make(chan outbox.Receipt, 2*orders)
	var clients sync.WaitGroup
	for i := range orders {
		clients.Go(func() {
			o, created := service.call("POST", "/orders", fmt.Sprintf(`{"customer":"ada","total_cents":%d}`, i+1), http.StatusCreated)
			_, paid := service.call("POST", "/orders/"+o.ID+"/pay", "", http.StatusOK)
			receipts <- created
			receipts <- paid
		})
	}
	clients.Wait()
	close(receipts)
	if t.Failed() {
		return
	}

	seen := map[string][]string{} // what was said of each order
	ids := map[string]bool{}
	for _, m := range w.messages(2 * orders) {
		h := m.Headers()
		var o Order
		if err := json.Unmarshal(m.Data(), &o); err != nil {
			t.Fatal(err)
		}
		if m.Subject() != w.topic || h.Get("onward-key") != o.ID || h.Get("content-type") != "application/json" {
			t.Errorf("subject %q, headers %v, order %s", m.Subject(), h, o.ID)
		}
		seen[o.ID] = append(seen[o.ID], h.Get("onward-type")+" "+o.State)
		ids[h.Get("Nats-Msg-Id")] = true
	}
	if len(seen) != orders || w.stored() != 2*orders {
		t.Errorf("%d orders in %d messages, want %d in %d", len(seen), w.stored(), orders, 2*orders)
	}
	for id, said := range seen {
		if len(said) != 2 || said[0] != "OrderCreated open" || said[1] != "OrderPaid paid" {
			t.Errorf("of order %s the stream says %q", id, said)
		}
	}
	for receipt := range receipts {
		if !ids[receipt.ID.String()] {
			t.Errorf("no message has the id of receipt %s", receipt)
		}
	}
}

func TestARefusedRequestWritesNoMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.migrate = true
	service := w.start()
	service.call("POST", "/orders", `{"customer":"","total_cents":1}`, http.StatusUnprocessableEntity)
	service.call("POST", "/orders", `{"customer":"ada","total_cents":0}`, http.StatusUnprocessableEntity)
	service.call("POST", "/orders", `{"customer":"a\u0000","total_cents":1}`, http.StatusUnprocessableEntity)
	service.call("POST", "/orders", `{"customer":`, http.StatusBadRequest)
	service.call("POST", "/orders/nonsense/pay", "", http.StatusNotFound)
	service.call("POST", "/orders/"+outbox.NewID().String()+"/pay", "", http.StatusNotFound)
	service.call("GET", "/orders/"+outbox.NewID().String(), "", http.StatusNotFound)
	if n := w.count(written); n != 0 {
		t.Errorf("%d messages of refused requests", n)
	}
	o, _ := service.call("POST", "/orders", `{"customer":"ada","total_cents":1}`, http.StatusCreated)
	service.call("POST", "/orders/"+o.ID+"/pay", "", http.StatusOK)
	service.call("POST", "/orders/"+o.ID+"/pay", "", http.StatusConflict)
	if n := w.count(written); n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
	if got, receipt := service.call("GET", "/orders/"+o.ID, "", http.StatusOK); got.State != "paid" || !receipt.ID.IsZero() {
		t.Errorf("the order is %+v, with receipt %s", got, receipt)
	}
}

// The other half of "both, or neither".
func TestAnOrderWhoseMessageIsRefusedDoesNotExist(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.migrate = true
	service := w.start()
	w.exec(`ALTER TABLE outbox_messages ADD CHECK (topic <> '` + w.topic + `')`)
	service.call("POST", "/orders", `{"customer":"ada","total_cents":1}`, http.StatusInternalServerError)
	if n := w.count(`SELECT count(*) FROM orders`); n != 0 {
		t.Errorf("%d orders without a message", n)
	}
}

func TestMessagesWaitForARelayBeside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.migrate = true
	service := w.start()
	o, _ := service.call("POST", "/orders", `{"customer":"ada","total_cents":1}`, http.StatusCreated)
	service.call("POST", "/orders/"+o.ID+"/pay", "", http.StatusOK)
	if n := w.count(relays); n != 0 {
		t.Fatalf("%d relays, want none", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runRelay(ctx, w.settings) }()
	got := w.messages(2)
	if a, b := got[0].Headers().Get("onward-type"), got[1].Headers().Get("onward-type"); a != "OrderCreated" || b != "OrderPaid" {
		t.Errorf("the stream says %s, %s", a, b)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestTheServiceLeavesNothingBehindWhenItStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.migrate, w.relay = true, true
	service := w.start()
	w.eventually("the relay holds partitions", func() bool {
		return w.count(`SELECT count(*) FROM outbox_partitions WHERE relay IS NOT NULL`) > 0
	})
	service.call("POST", "/orders", `{"customer":"ada","total_cents":1}`, http.StatusCreated)
	if err := service.stop(); err != nil {
		t.Errorf("the service ends with: %v", err)
	}
	if n := w.count(relays); n != 0 {
		t.Errorf("%d relays are still registered", n)
	}
	if n := w.count(`SELECT count(*) FROM outbox_partitions WHERE relay IS NOT NULL`); n != 0 {
		t.Errorf("%d partitions are still held", n)
	}
	w.start() // what it had not published goes out with the next one
	w.messages(1)
	if n := w.stored(); n != 1 {
		t.Errorf("%d messages in the stream, want 1", n)
	}
}

func TestTheServiceSaysThatTheOutboxIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay = true
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := run(ctx, w.settings); outbox.CodeOf(err) != store.ErrSchemaMissing.Code {
		t.Errorf("the service ends with: %v", err)
	}
}

// A terminal without the README's variables, or without servers, is told what is missing.
func TestWhatIsMissingIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.migrate = true
	for want, change := range map[string]func(s *settings){
		"DATABASE_URL":         func(s *settings) { s.database = "" },
		"NATS_URL":             func(s *settings) { s.nats = "" },
		"NATS does not answer": func(s *settings) { s.nats = "nats://127.0.0.1:1" },
	} {
		s := w.settings
		change(&s)
		if err := run(t.Context(), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the service ends with %v, want %q in it", err, want)
		}
	}
}

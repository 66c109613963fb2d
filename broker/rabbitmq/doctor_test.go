package rabbitmq

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

// examine asks the server what a confirmation for messages of these topics is worth.
func examine(t *testing.T, p *Publisher, topics ...string) doctor.Diagnosis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var q doctor.Question
	for _, topic := range topics {
		q.Samples = append(q.Samples, &outbox.Record{Message: outbox.Message{ID: outbox.NewID(), Topic: topic, Type: "x"}})
	}
	d, err := p.Examine(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Findings {
		if f.Severity == 0 || f.Read == "" || f.Check == "" || f.Severity > doctor.OK && (f.Means == "" || f.Fix == "") {
			t.Errorf("incomplete: %+v", f)
		}
	}
	return d
}

// found is a check's finding at a place.
func found(d doctor.Diagnosis, check, where string) doctor.Finding {
	for _, f := range d.Findings {
		if f.Check == check && strings.HasPrefix(f.Where, where) {
			return f
		}
	}
	return doctor.Finding{}
}

// wantFinding compares a check's finding: its severity, a part of what was read and of the fix.
func wantFinding(t *testing.T, when string, d doctor.Diagnosis, check, where string, s doctor.Severity, read, fix string) {
	t.Helper()
	if f := found(d, check, where); f.Severity != s || !strings.Contains(f.Read, read) || !strings.Contains(f.Fix, fix) {
		t.Errorf("%s: %s of %s is %v, %q, fix %q; want %v, %q, fix %q", when, check, where, f.Severity, f.Read, f.Fix, s, read, fix)
	}
}

// managedNode is a node with the management plugin.
func managedNode(t *testing.T) (n *node, address string) {
	t.Helper()
	port := brokertest.FreePort()
	n = newNode(t, fmt.Sprintf("management.tcp.port = %d", port), "management.tcp.ip = 127.0.0.1", "collect_statistics_interval = 200")
	address = fmt.Sprintf("http://127.0.0.1:%d", port)
	untilWithin(t, nodeStart, "the management plugin answers", func() bool {
		m, err := newManagement(address, n.url())
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.get(t.Context(), &struct{}{}, "overview")
		return err == nil
	})
	return n, address
}

// policy makes a policy, or takes it away where it defines nothing.
func policy(t *testing.T, address, name, pattern, kind string, d map[string]any) {
	t.Helper()
	method, body := http.MethodPut, bytes.Buffer{}
	if d == nil {
		method = http.MethodDelete
	} else if err := json.NewEncoder(&body).Encode(map[string]any{"pattern": pattern, "definition": d, "apply-to": kind}); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, address+"/api/policies/"+url.PathEscape("/")+"/"+name, &body)
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth("onward", "onward")
	request.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode/100 != 2 {
		t.Fatalf("policy %s: %s", name, response.Status)
	}
}

// Each setting of an exchange or queue that can lose what was confirmed changes the verdict when it is changed on the server.
func TestTheVerdictOfAQueueGoesByItsSettings(t *testing.T) {
	t.Parallel()
	n, address := managedNode(t)
	b := newBench(t, n.url(), amqp.Table{"x-queue-type": "quorum"})
	p := b.publisher(Config{Exchange: b.exchange, ManagementURL: address})
	var d doctor.Diagnosis
	until(t, "the plugin knows the queue's members", func() bool {
		d = examine(t, p, b.topic)
		return strings.Contains(found(d, "rabbitmq-queue-type", "queue "+b.queue).Read, "members: 1")
	})
	queue, exchange := "queue "+b.queue, "exchange "+b.exchange
	wantFinding(t, "of one node", d, "rabbitmq-queue-type", queue, doctor.Warning, "type = quorum", "rabbitmq-queues grow")
	for check, where := range map[string]string{
		"rabbitmq-exchange": exchange, "rabbitmq-exchange-durable": exchange, "rabbitmq-alternate-exchange": exchange, "rabbitmq-queue-durable": queue, "rabbitmq-overflow": queue, "clock-skew": "",
	} {
		wantFinding(t, "as it should be", d, check, where, doctor.OK, "", "")
	}
	if d.Verdict() != doctor.Warning || !strings.Contains(d.Worth, "on the disk of one node") || !strings.HasPrefix(d.Server, "RabbitMQ 3.") {
		t.Errorf("the verdict is %v, %q of %q", d.Verdict(), d.Worth, d.Server)
	}

	classic := b.queue + "-classic"
	b.bind(classic, "*.orders", nil)
	d = examine(t, p, b.topic)
	wantFinding(t, "of a classic queue", d, "rabbitmq-queue-type", "queue "+classic, doctor.Unsafe, "type = classic", "queue_type=quorum")
	if d.Verdict() != doctor.Unsafe || !strings.Contains(d.Worth, "what that node loses is lost") {
		t.Errorf("with a classic queue the verdict is %v, %q", d.Verdict(), d.Worth)
	}
	wantFinding(t, "of another topic", examine(t, p, b.exchange+".parcels"), "rabbitmq-route", exchange, doctor.Warning, "no queue takes", "bind it")

	policy(t, address, "p", "^"+classic+"$", "queues", map[string]any{"max-length": 10, "message-ttl": 5000, "expires": 3_600_000, "ha-mode": "all"})
	until(t, "the policy is there", func() bool {
		d = examine(t, p, b.topic)
		return strings.Contains(found(d, "rabbitmq-queue-type", "queue "+classic).Read, "ha-mode")
	})
	for check, want := range map[string]struct {
		severity  doctor.Severity
		read, fix string
	}{
		"rabbitmq-overflow":    {doctor.Unsafe, "overflow = drop-head, max-length = 10", "reject-publish"},
		"rabbitmq-message-ttl": {doctor.Note, "message-ttl = 5000", "message-ttl"},
		"rabbitmq-expires":     {doctor.Warning, "expires = 3.6e+06", "expires"},
		"rabbitmq-queue-type":  {doctor.Warning, "ha-mode = all", "queue_type=quorum"},
	} {
		wantFinding(t, "by a policy", d, check, "queue "+classic, want.severity, want.read, want.fix)
	}
	if !strings.Contains(d.Worth, "until the queue is full") {
		t.Errorf("with a limit it is worth %q", d.Worth)
	}
	policy(t, address, "p", "", "", nil)
	refuses, moves := b.queue+"-refuses", b.queue+"-moves"
	b.bind(refuses, "*.orders", amqp.Table{"x-max-length-bytes": 1000, "x-overflow": "reject-publish"})
	b.bind(moves, "*.orders", amqp.Table{"x-max-length": 10, "x-dead-letter-exchange": "dead"})
	d = examine(t, p, b.topic)
	wantFinding(t, "by its arguments", d, "rabbitmq-overflow", "queue "+refuses, doctor.OK, "overflow = reject-publish, max-length-bytes = 1000", "")
	wantFinding(t, "by its arguments", d, "rabbitmq-overflow", "queue "+moves, doctor.Warning, "max-length = 10", "reject-publish")

	policy(t, address, "p", "^"+b.exchange+"$", "exchanges", map[string]any{"alternate-exchange": "amq.fanout"})
	until(t, "the exchange has an alternate one", func() bool {
		return found(examine(t, p, b.topic), "rabbitmq-alternate-exchange", exchange).Severity == doctor.Note
	})
	policy(t, address, "p", "", "", nil)

	transient := b.exchange + "-transient"
	if err := b.channel.ExchangeDeclare(transient, "fanout", false, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.channel.QueueDeclare(transient, false, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.channel.QueueBind(transient, "", transient, false, nil); err != nil {
		t.Fatal(err)
	}
	d = examine(t, b.publisher(Config{Exchange: "{{.Topic}}", ManagementURL: address}), transient)
	wantFinding(t, "of what goes with the node", d, "rabbitmq-exchange-durable", "exchange "+transient, doctor.Warning, "durable = false, auto_delete = true", "durable=true")
	wantFinding(t, "of what goes with the node", d, "rabbitmq-queue-durable", "queue "+transient, doctor.Unsafe, "durable = false, auto_delete = true", "durable=true")
	if !strings.Contains(d.Worth, "a restart loses it") {
		t.Errorf("it is worth %q", d.Worth)
	}
}

// AMQP says what is there, and no more: without the plugin the rest is unknown, and named.
func TestWhatOnlyThePluginSaysIsUnknownWithoutIt(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t))
	for what, c := range map[string]Config{
		"the plugin":                    {Exchange: b.exchange},
		"a plugin that answers":         {Exchange: b.exchange, ManagementURL: fmt.Sprintf("http://127.0.0.1:%d", brokertest.FreePort())},
		"messages, with the exchange's": {Exchange: b.exchange},
	} {
		var topics []string
		if !strings.HasPrefix(what, "messages") {
			topics = []string{b.topic}
		}
		d := examine(t, b.publisher(c), topics...)
		wantFinding(t, "without "+what, d, "rabbitmq-management", "", doctor.Unknown, "were not read", "rabbitmq.management_url")
		wantFinding(t, "without "+what, d, "rabbitmq-exchange", "exchange "+b.exchange, doctor.OK, "exists", "")
		if d.Verdict() != doctor.Unknown || !strings.HasPrefix(d.Worth, "not known") {
			t.Errorf("without %s the verdict is %v, %q", what, d.Verdict(), d.Worth)
		}
	}
	byQueue, err := Dial(b.url, Options{}, Config{}) // over the default exchange
	if err != nil {
		t.Fatal(err)
	}
	defer closeNow(byQueue)
	d := examine(t, byQueue, b.queue, b.queue+"-missing")
	wantFinding(t, "of the default exchange", d, "rabbitmq-route", "queue "+b.queue+"-missing", doctor.Warning, "no queue takes", "declare queue")
	if f := found(d, "rabbitmq-route", "queue "+b.queue+"-"); f.Where != "queue "+b.queue+"-missing" {
		t.Errorf("said of %s", f.Where)
	}
	wantFinding(t, "without topics", examine(t, byQueue), "rabbitmq-route", "", doctor.Unknown, "no exchange or queue", "--topic NAME")
}

func TestTopicsMatchAsAMQPHasIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.c", false},
		{"a.*", "a.b", true},
		{"a.*", "a", false},
		{"a.*", "a.b.c", false},
		{"#", "a.b.c", true},
		{"a.#", "a", true},
		{"a.#", "a.b.c", true},
		{"#.c", "a.b.c", true},
		{"#.c", "a.b", false},
		{"a.#.c", "a.c", true},
		{"*.#", "a", true},
		{"", "", true},
	} {
		e := &exchange{Type: "topic"}
		if got := matches(strings.Split(c.pattern, "."), strings.Split(c.key, ".")); got != c.want || c.key != "" && e.takes(c.pattern, c.key) != c.want {
			t.Errorf("%q takes %q: %v, want %v", c.pattern, c.key, got, c.want)
		}
	}
	if e := (&exchange{Type: "direct"}); e.takes("a", "b") || !e.takes("a", "a") || !e.takes("a", "") || !(&exchange{Type: "fanout"}).takes("a", "b") {
		t.Error("an exchange of another kind")
	}
}

// A server, or an exchange, that is not there is an error that says so, and no verdict.
func TestAServerThatIsNotThereIsNotExamined(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t))
	gone, err := Dial(fmt.Sprintf("amqp://127.0.0.1:%d", brokertest.FreePort()), Options{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeNow(gone)
	for what, p := range map[string]*Publisher{"there is no connection": gone, "does not exist": b.publisher(Config{Exchange: b.exchange + "-missing"})} {
		if d, err := p.Examine(t.Context(), doctor.Question{}); outbox.CodeOf(err) != broker.CodeUnavailable || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: got %+v, %v", what, d, err)
		}
	}
	if _, err := Dial(b.url, Options{}, Config{ManagementURL: "host:15672"}); outbox.CodeOf(err) != outbox.ErrConfigInvalid.Code {
		t.Errorf("an address that is none: %v", err)
	}
}

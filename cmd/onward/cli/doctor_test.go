package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/cmd/onward/internal/golden"
	"github.com/onwardhq/onward/doctor"
)

// The doctor of a file and of sinks that need no server, as a terminal shows it and as a script reads it.
func TestDoctorSaysWhatAnAcknowledgementIsWorth(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	c := console{environ: []string{
		"ONWARD_DATABASE__URL=sqlite:" + filepath.Join(folder, "orders.db"),
		"ONWARD_SINKS__0__NAME=lines", "ONWARD_SINKS__0__URL=jsonl:" + filepath.Join(folder, "orders.jsonl"),
		"ONWARD_SINKS__1__NAME=partner", "ONWARD_SINKS__1__URL=http://user:topsecret@partner.example/orders",
		"ONWARD_SINKS__2__NAME=gone", "ONWARD_SINKS__2__URL=discard:", "ONWARD_SINKS__3__NAME=off", "ONWARD_SINKS__3__URL=discard:", "ONWARD_SINKS__3__ENABLED=false",
	}}
	if r := c.run(t, "migrate", "up"); r.code != exitDone {
		t.Fatalf("migrate: %+v", r)
	}
	text := c.sessions(t, "doctor", "doctor --strict -q", "doctor --json", "doctor -o jsonl -q", "doctor --timeout 0s")
	text = regexp.MustCompile(`SQLite [0-9.]+`).ReplaceAllString(strings.ReplaceAll(text, folder, "/folder"), "SQLite N")
	if strings.Contains(text, "topsecret") {
		t.Error("it says a secret")
	}
	golden.Compare(t, "doctor", text)
	c.terminal = true
	colored := c.run(t, "doctor").out
	c.environ = append(c.environ, "NO_COLOR=1")
	plain := c.run(t, "doctor").out
	if !strings.Contains(colored, "\x1b[33mwarning") || strings.Contains(plain, "\x1b") || regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(colored, "") != plain {
		t.Errorf("colored:\n%q\nplain:\n%q", colored, plain)
	}
	for line := range strings.Lines(plain) {
		if !strings.Contains(line, "fix: ") && !strings.Contains(line, "http") && utf8.RuneCountInString(strings.ReplaceAll(line, folder, "")) > 81 {
			t.Errorf("a line of more than 80 characters: %q", line)
		}
	}
}

// The exit code is for CI: 4 while the stream would lose what was acknowledged, 0 once it is mended. A relay that is told so
// refuses by the same checks.
func TestDoctorEndsWithARefusalWhileAStreamDiscardsOldMessages(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	config := jetstream.StreamConfig{Name: s.name, Subjects: []string{s.name}, Storage: jetstream.FileStorage, MaxBytes: 1 << 20, Discard: jetstream.DiscardOld}
	if _, err := s.js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	c := d.relayTo(s)
	d.write(t, s.name)
	if r := c.run(t, "doctor"); r.code != exitRefused || !strings.Contains(r.out, "discard = old, max_bytes = 1048576") || !strings.Contains(r.out, "fix: nats stream edit "+s.name+" --discard new") || !strings.Contains(r.err, "onward/settings-unsafe") {
		t.Errorf("while it discards old messages: %+v", r)
	}
	if r := c.run(t, "relay", "--once", "--set", "relay.on_unsafe=refuse"); r.code != exitRefused || !strings.Contains(r.err, "discard = old") || s.count(t) != 0 {
		t.Errorf("a relay that refuses: %+v, %d published", r, s.count(t))
	}
	warned := c.start(t, "relay")
	eventually(t, "a relay that warns says so", func() bool { return strings.Contains(warned.err.String(), "jetstream-discard") })
	if code := warned.end(t); code != exitDone {
		t.Errorf("the relay that warned ended with %d:\n%s", code, warned.said())
	}
	config.Discard = jetstream.DiscardNew
	if _, err := s.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	r := c.run(t, "doctor", "--json")
	var report struct {
		Verdict  string
		Subjects []struct {
			Kind, Name, Server, Verdict, Worth string
			Findings                           []struct{ Check, Severity, Read string }
		}
	}
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || r.code != exitDone {
		t.Fatalf("mended: %v, %+v", err, r)
	}
	if len(report.Subjects) != 2 || report.Verdict == doctor.Unsafe.String() || report.Subjects[0].Kind != "database" || !strings.HasPrefix(report.Subjects[0].Server, "PostgreSQL") ||
		report.Subjects[1].Name != "orders" || !strings.HasPrefix(report.Subjects[1].Server, "NATS 2") || report.Subjects[1].Worth == "" || len(report.Subjects[1].Findings) < 5 {
		t.Errorf("the report is %+v", report)
	}
	d.write(t, s.name)
	if r := c.run(t, "relay", "--once", "--set", "relay.on_unsafe=refuse"); r.code != exitDone || s.count(t) < 1 {
		t.Errorf("a relay that refuses, once it is mended: %+v", r)
	}
}

// A server that does not answer is said in its place, and is the end's code; the others are examined all the same.
func TestDoctorSaysWhichServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "orders.db")
	c := console{environ: []string{
		"ONWARD_DATABASE__URL=sqlite:" + file, "ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__URL=nats://127.0.0.1:1", "ONWARD_SINKS__0__NATS__STREAM=ORDERS",
	}}
	if r := c.run(t, "doctor"); r.code != exitUnreachable || !strings.Contains(r.err, "no such file") {
		t.Errorf("without a file: %+v", r)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the doctor made the file")
	}
	if r := c.run(t, "migrate", "up"); r.code != exitDone {
		t.Fatalf("migrate: %+v", r)
	}
	r := c.run(t, "doctor", "--timeout", "100ms")
	if r.code != exitUnreachable || !strings.Contains(r.out, "sqlite-") && !strings.Contains(r.out, "synchronous = full") || !strings.Contains(r.out, "nats://127.0.0.1:1") || !strings.Contains(r.err, "onward/broker-unavailable") {
		t.Errorf("without a broker: %+v", r)
	}
}

// Each broker is asked by its own checks, with the sink's settings, over the addresses of the sink.
func TestDoctorAsksEachBroker(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ variable, server, check string }{
		{"ONWARD_TEST_KAFKA_URL", "Kafka, ", "kafka-topic"},
		{"ONWARD_TEST_RABBITMQ_URL", "RabbitMQ ", "rabbitmq-management"},
		{"ONWARD_TEST_REDIS_URL", "Redis ", "redis-appendfsync"},
	} {
		t.Run(c.variable, func(t *testing.T) {
			t.Parallel()
			address := os.Getenv(c.variable)
			if address == "" {
				t.Skip(c.variable + ` is not set: start the servers with: dev/services up && eval "$(dev/services env)"`)
			}
			o := console{environ: []string{
				"ONWARD_DATABASE__URL=sqlite:" + filepath.Join(t.TempDir(), "orders.db"), "ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__URL=" + address, "ONWARD_SINKS__0__TOPICS=nobody.asks",
			}}
			if r := o.run(t, "migrate", "up"); r.code != exitDone {
				t.Fatalf("migrate: %+v", r)
			}
			r := o.run(t, "doctor", "-o", "jsonl")
			var answers []string
			for line := range strings.Lines(r.out) {
				var a struct {
					Server, Error string
					Findings      []struct{ Check string }
				}
				if err := json.Unmarshal([]byte(line), &a); err != nil || a.Error != "" {
					t.Fatalf("%v: %s", err, line)
				}
				text := a.Server
				for _, f := range a.Findings {
					text += " " + f.Check
				}
				answers = append(answers, text)
			}
			if len(answers) != 2 || !strings.HasPrefix(answers[1], c.server) || !strings.Contains(answers[1], c.check) || r.code != exitDone {
				t.Errorf("code %d: %q\n%s", r.code, answers, r.err)
			}
		})
	}
}

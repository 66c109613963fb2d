package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

// examine asks the server what an acknowledgement for messages of these topics is worth.
func examine(t *testing.T, p *Publisher, q doctor.Question, topics ...string) doctor.Diagnosis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, topic := range topics {
		q.Samples = append(q.Samples, &outbox.Record{Message: outbox.Message{Topic: topic, Type: "x"}})
	}
	d, err := p.Examine(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Findings {
		if f.Severity == 0 || f.Read == "" || f.Check == "" || f.Severity > doctor.Unknown && (f.Means == "" || f.Fix == "") {
			t.Errorf("incomplete: %+v", f)
		}
	}
	return d
}

// wantFinding compares a check's finding: its severity, a part of what was read and of the fix.
func wantFinding(t *testing.T, when string, d doctor.Diagnosis, check string, s doctor.Severity, read, fix string) {
	t.Helper()
	var found doctor.Finding
	for _, f := range d.Findings {
		if f.Check == check {
			found = f
		}
	}
	if found.Severity != s || !strings.Contains(found.Read, read) || !strings.Contains(found.Fix, fix) {
		t.Errorf("%s: %s is %v, %q, fix %q; want %v, %q, fix %q", when, check, found.Severity, found.Read, found.Fix, s, read, fix)
	}
}

// Each setting that can lose an entry changes the verdict when it is changed on the server, and back.
func TestTheVerdictOfAServerGoesByItsSettings(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := s.bench()
	p, fenced := b.publisher(Config{}), b.publisher(Config{Fence: "shop"})
	d := examine(t, p, doctor.Question{}, b.topic)
	for _, check := range []string{"redis-version", "redis-appendonly", "redis-appendfsync", "redis-eviction", "redis-stream", "clock-skew"} {
		wantFinding(t, "as it should be", d, check, doctor.OK, "", "")
	}
	wantFinding(t, "alone", d, "redis-replicas", doctor.Note, "role = master, connected replicas: 0", "")
	if d.Verdict() != doctor.Note || !strings.Contains(d.Worth, "on the server's disk") || strings.Contains(d.Worth, "whole streams") || !strings.HasPrefix(d.Server, "Redis ") || len(d.Server) < 9 {
		t.Errorf("the verdict is %v, %q of %q", d.Verdict(), d.Worth, d.Server)
	}
	for _, c := range []struct {
		settings, usual [][2]string
		publisher       *Publisher
		question        doctor.Question
		check           string
		severity        doctor.Severity
		read, fix       string
		worth           string
	}{
		{[][2]string{{"appendfsync", "everysec"}}, [][2]string{{"appendfsync", "always"}}, p, doctor.Question{}, "redis-appendfsync", doctor.Unsafe, "appendfsync = everysec", "CONFIG SET appendfsync always", "loses the newest"},
		{[][2]string{{"appendfsync", "no"}}, [][2]string{{"appendfsync", "always"}}, p, doctor.Question{}, "redis-appendfsync", doctor.Unsafe, "appendfsync = no", "CONFIG SET appendfsync always", "loses the newest"},
		{[][2]string{{"no-appendfsync-on-rewrite", "yes"}}, [][2]string{{"no-appendfsync-on-rewrite", "no"}}, p, doctor.Question{}, "redis-appendfsync", doctor.Warning, "no-appendfsync-on-rewrite = yes", "no-appendfsync-on-rewrite no", "on the server's disk"},
		{[][2]string{{"appendonly", "no"}}, [][2]string{{"appendonly", "yes"}}, p, doctor.Question{}, "redis-appendonly", doctor.Unsafe, "appendonly = no", "CONFIG SET appendonly yes", "since the last snapshot"},
		{[][2]string{{"maxmemory-policy", "allkeys-lru"}}, [][2]string{{"maxmemory-policy", "noeviction"}}, p, doctor.Question{}, "redis-eviction", doctor.Note, "allkeys-lru", "maxmemory-policy noeviction", "on the server's disk"},
		{[][2]string{{"maxmemory", "100mb"}, {"maxmemory-policy", "allkeys-lru"}}, [][2]string{{"maxmemory", "0"}, {"maxmemory-policy", "noeviction"}}, p, doctor.Question{}, "redis-eviction", doctor.Unsafe, "allkeys-lru, maxmemory = 104857600", "maxmemory-policy noeviction", "whole streams go"},
		{[][2]string{{"maxmemory", "100mb"}, {"maxmemory-policy", "volatile-ttl"}}, [][2]string{{"maxmemory", "0"}, {"maxmemory-policy", "noeviction"}}, p, doctor.Question{}, "redis-eviction", doctor.OK, "volatile-ttl", "", ""},
		{[][2]string{{"maxmemory", "100mb"}, {"maxmemory-policy", "volatile-ttl"}}, [][2]string{{"maxmemory", "0"}, {"maxmemory-policy", "noeviction"}}, fenced, doctor.Question{}, "redis-eviction", doctor.Warning, "volatile-ttl", "maxmemory-policy noeviction", ""},
		{[][2]string{{"proto-max-bulk-len", "1mb"}}, [][2]string{{"proto-max-bulk-len", "512mb"}}, p, doctor.Question{MaxPayload: 2 << 20}, "redis-max-payload", doctor.Warning, "proto-max-bulk-len", "proto-max-bulk-len 512mb", ""},
	} {
		when := fmt.Sprint(c.settings)
		for _, one := range c.settings {
			b.set(one[0], one[1])
		}
		d := examine(t, c.publisher, c.question, b.topic)
		wantFinding(t, when, d, c.check, c.severity, c.read, c.fix)
		if !strings.Contains(d.Worth, c.worth) {
			t.Errorf("%s: it is worth %q, want %q", when, d.Worth, c.worth)
		}
		for _, one := range c.usual {
			b.set(one[0], one[1])
		}
	}
	if d := examine(t, p, doctor.Question{}, b.topic); d.Verdict() != doctor.Note {
		t.Errorf("in the end the verdict is %v: %+v", d.Verdict(), d.Findings)
	}
	wantFinding(t, "trimmed", examine(t, b.publisher(Config{MaxLen: 7}), doctor.Question{}), "redis-trimming", doctor.Note, "max_len = 7", "redis.max_len")
	b.makeOther()
	wantFinding(t, "of a key that is no stream", examine(t, p, doctor.Question{}, b.other()), "redis-stream", doctor.Warning, "type = string", "RENAME "+b.other())
}

// What this user may not read is unknown, with the right that is missing; WAITAOF needs a version that has it.
func TestWhatMayNotBeReadIsUnknown(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := s.bench()
	b.must(b.client.Do(t.Context(), "acl", "setuser", "writer", "on", ">secret", "~*", "+ping", "+xadd").Err())
	p := b.publisherAt(fmt.Sprintf("redis://writer:secret@127.0.0.1:%d", s.port), Config{})
	d := examine(t, p, doctor.Question{}, b.topic)
	for check, right := range map[string]string{
		"redis-version": "+info", "redis-appendonly": "+config|get", "redis-appendfsync": "+config|get", "redis-eviction": "+config|get", "redis-replicas": "+info", "clock-skew": "+time",
	} {
		wantFinding(t, "of a user who may write alone", d, check, doctor.Unknown, "not read", right)
	}
	if d.Verdict() != doctor.Unknown || !strings.HasPrefix(d.Worth, "not known") {
		t.Errorf("the verdict is %v, %q", d.Verdict(), d.Worth)
	}
	waits := b.publisher(Config{WaitAOF: true})
	d = examine(t, waits, doctor.Question{})
	info, err := b.client.Info(t.Context(), "server").Result()
	b.must(err)
	if canWaitAOF(info) == nil {
		b.set("appendfsync", "everysec")
		wantFinding(t, "with WAITAOF", examine(t, waits, doctor.Question{}), "redis-appendfsync", doctor.OK, "wait_aof = true", "")
	} else {
		wantFinding(t, "without WAITAOF", d, "redis-version", doctor.Unsafe, "redis_version = ", "leave wait_aof out")
		if !strings.HasPrefix(d.Worth, "nothing") {
			t.Errorf("a sink that does not connect is worth %q", d.Worth)
		}
	}
}

// Replicas follow: a fail-over is said to lose what they had not, and a replica itself takes nothing.
func TestReplicasAreFound(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	replica := newServer(t)
	b, r := s.bench(), replica.bench()
	p := b.publisher(Config{})
	b.must(r.client.Do(t.Context(), "replicaof", "127.0.0.1", fmt.Sprint(s.port)).Err())
	until(t, "the replica is connected", func() bool { return strings.Contains(examine(t, p, doctor.Question{}).Worth, "not always a fail-over") })
	wantFinding(t, "with a replica", examine(t, p, doctor.Question{}), "redis-replicas", doctor.Note, "connected replicas: 1, min-replicas-to-write = 0", "CONFIG SET min-replicas-to-write 1")
	b.set("min-replicas-to-write", "1")
	wantFinding(t, "that is waited for", examine(t, p, doctor.Question{}), "redis-replicas", doctor.Note, "min-replicas-to-write = 1", "")
	wantFinding(t, "of the replica", examine(t, r.publisher(Config{}), doctor.Question{}), "redis-replicas", doctor.Unsafe, "role = slave", "name the master")
}

// A server that is not there is an error that says so, and no verdict.
func TestAServerThatIsNotThereIsNotExamined(t *testing.T) {
	t.Parallel()
	p, err := Dial(fmt.Sprintf("redis://127.0.0.1:%d", brokertest.FreePort()), Options{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeNow(p)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if d, err := p.Examine(ctx, doctor.Question{}); outbox.CodeOf(err) != broker.CodeUnavailable {
		t.Errorf("got %+v, %v", d, err)
	}
}

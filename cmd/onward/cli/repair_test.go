package cli

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// subjects are those of the stream's messages, in its order.
func (s *stream) subjects(t *testing.T) (all []string) {
	t.Helper()
	for n := range s.count(t) {
		st, err := s.js.Stream(t.Context(), s.name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := st.GetMsg(t.Context(), uint64(n+1)) //nolint:gosec // counted
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.TrimPrefix(m.Subject, s.name))
	}
	return all
}

// deadOnArrival runs a relay with a message that no stream takes and one of its key behind it.
func deadOnArrival(t *testing.T) (*stream, *database, *running, string) {
	t.Helper()
	s, d := newStream(t), newDatabase(t)
	s.create(t)
	d.write(t, s.name+".unheard")
	d.write(t, s.name)
	r := d.relayTo(s).start(t, "relay")
	eventually(t, "it is a dead letter", func() bool { return d.run(t, "dead", "list", "-q", "-o", "jsonl").out != "" })
	eventually(t, "the next one waits behind it", func() bool {
		return strings.Contains(d.run(t, "messages", "list", "--reason", "behind", "-o", "jsonl").out, `"reason":"behind"`)
	})
	list := d.run(t, "dead", "list", "--code", "unroutable", "-o", "jsonl")
	if !strings.Contains(list.out, `"blocks":true`) || s.count(t) != 0 {
		t.Fatalf("dead: %+v; the stream has %d messages", list, s.count(t))
	}
	return s, d, r, one[string](t, d, `SELECT id::text FROM outbox_dead`)
}

// The whole way of a repair: a message becomes a dead letter, its cause is mended, it is requeued, and its key goes on in
// order.
func TestADeadLetterIsRepaired(t *testing.T) {
	t.Parallel()
	s, d, r, dead := deadOnArrival(t)
	shown := d.run(t, "dead", "show", dead)
	for _, words := range []string{"onward/unroutable", "attempt 1", "1 message of its key behind it", "hello"} {
		if !strings.Contains(shown.out, words) {
			t.Errorf("dead show does not say %q:\n%s", words, shown.out)
		}
	}
	_, err := s.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: s.name, Subjects: []string{s.name, s.name + ".unheard"}, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	if got := d.run(t, "dead", "requeue", dead); got.code != exitDone {
		t.Fatalf("requeue: %+v", got)
	}
	eventually(t, "both arrive", func() bool { return s.count(t) == 2 })
	if got := strings.Join(s.subjects(t), ","); got != ".unheard," {
		t.Errorf("the stream has %q, want the dead one first", got)
	}
	eventually(t, "nothing is left", func() bool {
		status := d.run(t, "status", "-o", "json").out
		return strings.Contains(status, `"dead": 0`) && strings.Contains(status, `"parked": {}`) && strings.Contains(status, `"blocked_keys": 0`)
	})
	if code := r.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
}

func TestADiscardLetsTheKeyGoOn(t *testing.T) {
	t.Parallel()
	s, d, r, dead := deadOnArrival(t)
	if got := d.run(t, "dead", "discard", dead, "--reason", "nobody listens"); got.code != exitDone {
		t.Fatalf("discard: %+v", got)
	}
	eventually(t, "the next one arrives", func() bool { return s.count(t) == 1 })
	if got := d.run(t, "messages", "list", "--state", "discarded", "-o", "jsonl"); !strings.Contains(got.out, dead) {
		t.Errorf("discarded: %+v", got)
	}
	if code := r.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
}

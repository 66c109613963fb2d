package chaos

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/Azure/go-amqp"
)

// PostgreSQL and what stands for Azure Service Bus through 20 seconds of everything that can go wrong.
func TestPromisesAreKeptWhileServiceBusFails(t *testing.T) {
	t.Parallel()
	needed(t, "ONWARD_TEST_POSTGRES_BIN", "ONWARD_TEST_ASB_PEER")
	kept(t, ServiceBus)
}

// The collector of the peer's journal takes messages and not settings, and the session for the key: of a message in a session of
// another key, or in none, the key was altered.
func TestTheCollectorOfTheJournalTakesTheSessionForTheKey(t *testing.T) {
	t.Parallel()
	line := func(session any, key string) []byte {
		t.Helper()
		m := amqp.NewMessage([]byte("hello"))
		m.ApplicationProperties = map[string]any{"onward-id": "i", "onward-epoch": "3"}
		if key != "" {
			m.ApplicationProperties["onward-key"] = key
		}
		encoded, err := m.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(map[string]any{"entity": "q", "session": session, "message": encoded})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	of := func(key string) Arrival {
		return Arrival{ID: "i", Key: key, Epoch: "3", Digest: digest([]byte("hello"))}
	}
	for name, c := range map[string]struct {
		line []byte
		want Arrival
		is   bool
	}{
		"a message":               {line("k", "k"), of("k"), true},
		"a message without a key": {line(nil, ""), of(""), true},
		"another session":         {line("x", "k"), of(`"k" in the session "x"`), true},
		"no session":              {line(nil, "k"), of(`"k" in the session ""`), true},
		"settings":                {[]byte(`{"entity": "q", "settings": {"quota": 1}}`), Arrival{}, false},
		"a torn line":             {line("k", "k")[:30], Arrival{}, false},
	} {
		if got, is := parseStored(c.line); is != c.is || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v, want %+v, %v", name, got, is, c.want, c.is)
		}
	}
}

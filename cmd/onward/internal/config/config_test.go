package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/cmd/onward/internal/golden"
	"github.com/onwardhq/onward/outbox"
)

func TestLoadReadsEverySetting(t *testing.T) {
	t.Parallel()
	c, err := Load(Source{File: "testdata/full.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	s := c.Sinks[0]
	for what, ok := range map[string]bool{
		"database.url":     c.Database.URL == "postgres://app:secret@db:5432/orders",
		"table_prefix":     c.Database.TablePrefix == "msg_",
		"auto_migrate":     c.Database.AutoMigrate,
		"max_connections":  c.Database.MaxConnections == 4,
		"lease":            c.Relay.Lease == 30*time.Second,
		"page_bytes":       c.Relay.PageBytes == 4<<20,
		"heartbeat":        c.Relay.Heartbeat == 3*time.Second, // default
		"sink":             s.Name == "orders" && s.URL == "nats://broker:4222",
		"stream":           s.NATS.Stream == "ORDERS",
		"window.bytes":     s.Window.Bytes == 512<<10,
		"window.messages":  s.Window.Messages == 1000, // default
		"settle.every":     s.Settle.Every == 50*time.Millisecond,
		"retry":            s.Retry == Retry{Kind: "fixed", First: 2 * time.Second, Max: 10 * time.Minute, Attempts: 0},
		"breaker.failures": s.Breaker.Failures == 5,
		"on_dead":          s.OnDead == "skip",
		"no_duplicates":    s.NoDuplicates == "compare",
		"topics":           len(c.Topics) == 2 && c.Topics[0].RequireKey && c.Topics[1].MaxPayload == 1000 && c.Topics[0].MaxPayload == 1<<20,
		"log":              c.Telemetry.Log == Log{Level: "warn", Format: "auto"},
	} {
		if !ok {
			t.Errorf("%s is wrong in %+v", what, c)
		}
	}
}

func TestLoadLetsTheEnvironmentWinOverTheFileAndFlagsOverBoth(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(secret, []byte("nats://token@from-a-file:4222\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(Source{
		File: "testdata/full.yaml",
		Environ: []string{
			"ONWARD_RELAY__LEASE=44s", "ONWARD_RELAY__LEASE=45s", "ONWARD_RELAY__POLL_MAX=1s", "ONWARD_SINKS__0__URL_FILE=" + secret, "ONWARD_SINKS__0__RETRY__ATTEMPTS=3",
			"ONWARD_DATABASE__SCHEMA=", "ONWARD_SERVICE_HOST=10.0.0.1", "ONWARD_CONFIG=x.yaml", "ONWARD_TEST_POSTGRES_URL=x", "PATH=/bin",
		},
		Set: []string{"relay.lease=1m", "sinks[0].settle.count=7", "topics.1.match=a=b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, ok := range map[string]bool{
		"a flag wins":          c.Relay.Lease == time.Minute,
		"a variable wins":      c.Relay.PollMax == time.Second,
		"a secret's file":      c.Sinks[0].URL == "nats://token@from-a-file:4222",
		"a list's entry":       c.Sinks[0].Retry.Attempts == 3,
		"a flag in a list":     c.Sinks[0].Settle.Count == 7,
		"a value with =":       c.Topics[1].Match == "a=b",
		"empty is not set":     c.Database.Schema == "public",
		"the rest of the file": c.Sinks[0].NATS.Stream == "ORDERS",
	} {
		if !ok {
			t.Errorf("%s: wrong in %+v", what, c)
		}
	}
}

// Everything that is wrong, in every source, in one answer.
func TestLoadNamesAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Load(Source{
		File: "testdata/faults.yaml", Need: NeedRelay,
		Environ: []string{
			"ONWARD_DATABASE_URL=postgres://x/y", "ONWARD_RELAY__LEASSE=15s", "ONWARD_RELAY__NAME_FILE=/run/name",
			"ONWARD_DATABASE__URL_FILE=testdata/none", "ONWARD_SINKS__X__URL=nats://x",
		},
		Set: []string{"relay.poll_min", "relay.polls=1s", "telemetry.log.format=xml", "topics[3].match=a", "relay=x"},
	})
	var e *outbox.Error
	if !errors.As(err, &e) || e.Code != outbox.ErrConfigInvalid.Code {
		t.Fatalf("got %v, want %s", err, outbox.ErrConfigInvalid.Code)
	}
	golden.Compare(t, "faults", e.Op+": "+e.Detail+"\n"+e.Err.Error()+"\n"+e.Hint+"\n")
}

func TestLoadTellsUnknownKeysFromBadValues(t *testing.T) {
	t.Parallel()
	_, err := Load(Source{Set: []string{"databse.url=postgres://localhost/x"}})
	if outbox.CodeOf(err) != CodeUnknownKey || !strings.Contains(err.Error(), "did you mean database?") {
		t.Errorf("got %v, want %s with the nearest name", err, CodeUnknownKey)
	}
}

func TestLoadRefusesYAMLThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"broken":        "relay: [",
		"two documents": "relay: {}\n---\nrelay: {}\n",
		"a list":        "- relay\n",
	} {
		file := filepath.Join(t.TempDir(), "onward.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(Source{File: file}); outbox.CodeOf(err) != outbox.ErrConfigInvalid.Code {
			t.Errorf("%s: got %v, want %s", name, err, outbox.ErrConfigInvalid.Code)
		}
	}
	for _, text := range []string{"", "# nothing\n", "relay:\n"} {
		file := filepath.Join(t.TempDir(), "onward.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(Source{File: file}); err != nil {
			t.Errorf("%q: got %v, want the defaults", text, err)
		}
	}
	if _, err := Load(Source{File: "testdata/none.yaml"}); !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("a missing file: got %v", err)
	}
}

// What is missing is one of the faults, and says how it is set; a command asks for no more than it uses.
func TestNeedsAreToldWithWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		source Source
		want   []string
	}{
		{Source{}, nil},
		{Source{Need: NeedDatabase}, []string{"ONWARD_DATABASE__URL=postgres://"}},
		{Source{Need: NeedDatabase, Set: []string{"database.url=postgres://localhost/x"}}, nil},
		{Source{Need: NeedRelay}, []string{"ONWARD_DATABASE__URL=postgres://", "ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__URL=nats://", "ONWARD_SINKS__0__NATS__STREAM="}},
		{Source{Need: NeedRelay, Set: []string{"sinks[0].url=pigeon://x", "relay.lase=3s"}}, []string{"ONWARD_DATABASE__URL=postgres://", "did you mean relay.lease?", `unknown URL scheme "pigeon"`, "sinks[0].name: is missing"}},
	} {
		_, err := Load(c.source)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%+v: got %v", c.source, err)
		}
		faults := Faults(nil)
		errors.As(err, &faults)
		for _, want := range c.want {
			if !strings.Contains(faults.Error(), want) {
				t.Errorf("%+v: got %v, want %q in it", c.source, faults, want)
			}
		}
	}
}

// An address of a sink in the environment is no reason to refuse a list of messages, which asks no sink.
func TestWhatARelayNeedsOfASinkIsAskedOfRelaysAlone(t *testing.T) {
	t.Parallel()
	half := Source{Environ: []string{"ONWARD_SINKS__0__URL=nats://localhost"}}
	if _, err := Load(half); err != nil {
		t.Errorf("half a sink, and no relay: %v", err)
	}
	half.Need = NeedRelay
	if _, err := Load(half); err == nil || !strings.Contains(err.Error(), "sinks[0].name: is missing") {
		t.Errorf("half a sink, and a relay: %v", err)
	}
	if _, err := Load(Source{Environ: []string{"ONWARD_SINKS__0__URL=carrier-pigeon://localhost"}}); err == nil {
		t.Error("a sink that no version has is accepted")
	}
}

func TestByteSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ByteSize{
		"0": 0, "1": 1, "4096": 4096, "16MiB": 16 << 20, "1 KiB": 1 << 10, "2GiB": 2 << 30, "1MB": 1e6, "3KB": 3e3, "5GB": 5e9, "7B": 7,
	} {
		if got, err := ParseByteSize(text); err != nil || got != want {
			t.Errorf("ParseByteSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5MiB", "1mib", "x", "9223372036854775807GiB", "1TiB"} {
		if got, err := ParseByteSize(text); err == nil {
			t.Errorf("ParseByteSize(%q) = %d, want an error", text, got)
		}
	}
	for size, want := range map[ByteSize]string{0: "0", 1000: "1000", 1 << 10: "1KiB", 16 << 20: "16MiB", 3 << 30: "3GiB", 1<<20 + 1: "1048577"} {
		if got := size.String(); got != want {
			t.Errorf("%d is written %q, want %q", int64(size), got, want)
		}
	}
}

func TestDurations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"0": 0, "0s": 0, "20ms": 20 * time.Millisecond, "1h30m": 90 * time.Minute, "30d": 720 * time.Hour} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "5", "-1s", "-2d", "d", "1.5d", "x"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("parseDuration(%q) = %v, want an error", text, got)
		}
	}
}

func TestMaskURLLeavesNoSecret(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"postgres://app:s3cret@db:5432/orders":              "postgres://app:***@db:5432/orders",
		"postgres://db/orders?password=s3cret&sslmode=none": "postgres://db/orders?password=***&sslmode=none",
		"postgres://db/o?sslpassword=s3cret":                "postgres://db/o?sslpassword=***",
		"nats://s3crettoken@n1:4222,nats://u:s3cret@n2:1":   "nats://***@n1:4222,nats://u:***@n2:1",
		"nats://n1:4222":                            "nats://n1:4222",
		"postgres://app:s3,cret@db/o,x":             "postgres://app:***@db/o,x",
		"postgres://ap,p:s3cret@db/o":               "postgres://ap,p:***@db/o",
		"postgres://app:s3/cr@et?@db/o":             "postgres://***@db/o",
		"nats://u:s3cret@n1,v:s3cret@n2,n3":         "nats://u:***@n2,n3",
		"nats://s3cret@n1,nats://v:s3,cret@n2,n3:1": "nats://***@n1,nats://v:***@n2,n3:1",
		"nats://u:s3%zzcret@n1":                     "nats://***@n1",
	} {
		if got := MaskURL(text); got != want {
			t.Errorf("MaskURL(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestEverySettingHasANote(t *testing.T) {
	t.Parallel()
	for _, s := range Settings() {
		if s.Note == "" {
			t.Errorf("%s has no note", s.Path)
		}
	}
}

// The example names only settings that exist, and the values that it calls defaults are.
func TestTheExampleIsTheDefaults(t *testing.T) {
	t.Parallel()
	c, err := Load(Source{File: "../../../../examples/onward.yaml"})
	if err != nil {
		t.Fatalf("%v\n%v", err, errors.Unwrap(err))
	}
	plain, err := Load(Source{Set: []string{
		"database.url=" + c.Database.URL, "sinks[0].name=orders", "sinks[0].url=" + c.Sinks[0].URL, "sinks[0].nats.stream=ORDERS",
		"topics[0].match=orders.>", "topics[0].require_key=true", "topics[1].match=>",
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.places, plain.places = nil, nil
	if !reflect.DeepEqual(c, plain) {
		t.Errorf("the example is\n%+v\nthe defaults are\n%+v", c, plain)
	}
}

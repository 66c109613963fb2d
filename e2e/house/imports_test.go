package house

import (
	"slices"
	"strings"
	"testing"
)

// The allow-list. Arrows: cmd -> stores, brokers, relay -> store, broker, outbox -> standard library. A name is added here
// only with the knowledge that everybody who imports that package gets it.
var allowList = map[string]Allowance{
	// The root module, package by package: nothing but the standard library, tests included, because every service imports it.
	"leaktest":          {},
	"outbox":            {},
	"outbox/outboxtest": {Ours: []string{"outbox"}},
	"internal/jsontext": {}, // of broker and broker/jsonl
	"broker":            {Ours: []string{"outbox", "internal/jsontext"}},
	"broker/brokertest": {Ours: []string{"outbox", "broker"}, Tests: []string{"leaktest", "broker/membroker"}},
	"broker/membroker":  {Ours: []string{"outbox", "broker"}, Tests: []string{"leaktest", "broker/brokertest"}},
	"broker/jsonl":      {Ours: []string{"outbox", "doctor", "broker", "internal/jsontext"}, Tests: []string{"leaktest", "broker/brokertest"}},
	"broker/inprocess":  {Ours: []string{"outbox", "doctor", "broker"}, Tests: []string{"leaktest", "broker/brokertest", "relay", "store/memstore"}},
	"broker/inflight":   {Ours: []string{"outbox", "broker"}, Tests: []string{"leaktest", "broker/brokertest", "broker/membroker"}}, // of drivers
	"broker/discard":    {Ours: []string{"outbox", "doctor", "broker"}, Tests: []string{"leaktest", "broker/brokertest"}},
	"doctor":            {Ours: []string{"outbox"}, Tests: []string{"leaktest"}},
	"store":             {Ours: []string{"outbox"}},
	"store/storetest":   {Ours: []string{"outbox", "broker", "store"}, Tests: []string{"store/memstore"}},
	"store/memstore":    {Ours: []string{"outbox", "broker", "store"}, Tests: []string{"leaktest", "store/storetest"}},
	"relay/core": {
		Ours:  []string{"outbox", "broker", "store"},
		Tests: []string{"store/memstore", "broker/membroker"},
	},
	"relay": {
		Ours:  []string{"outbox", "broker", "store", "doctor", "relay/core", "internal/failpoint"},
		Tests: []string{"leaktest", "store/memstore", "broker/membroker"},
	},
	"internal/failpoint": {}, // of relay; store/postgres and store/sqlite have their own

	// Leaves: one client library each, and the contracts. Never each other, never the root's internal packages.
	"store/postgres": {
		Ours:   []string{"outbox", "doctor", "store"},
		Theirs: ofPostgres,
		Tests:  []string{"leaktest", "outbox/outboxtest", "broker", "store/storetest", "relay", "broker/membroker"},
	},
	"store/sqlite": {
		Ours:   []string{"outbox", "doctor", "store"},
		Theirs: ofSQLite,
		Tests:  []string{"leaktest", "broker", "store/storetest", "relay", "relay/core"},
	},
	"broker/nats": {
		Ours:   []string{"outbox", "doctor", "broker"},
		Theirs: ofNATS,
		Tests:  []string{"leaktest", "broker/brokertest"},
	},
	"broker/rabbitmq": {
		Ours:   []string{"outbox", "doctor", "broker", "broker/inflight"},
		Theirs: ofRabbitMQ,
		Tests:  []string{"leaktest", "broker/brokertest"},
	},
	"broker/redis": {
		Ours:   []string{"outbox", "doctor", "broker", "broker/inflight"},
		Theirs: ofRedis,
		Tests:  []string{"leaktest", "broker/brokertest"},
	},
	"broker/servicebus": {
		Ours:   []string{"outbox", "doctor", "broker"},
		Theirs: ofServiceBus,
		Tests:  []string{"leaktest", "broker/brokertest"},
	},
	"broker/kafka": {
		Ours:   []string{"outbox", "doctor", "broker"},
		Theirs: ofKafka,
		Tests:  []string{"leaktest", "broker/brokertest"},
	},
	"broker/watermill": {
		Ours:   []string{"outbox", "broker"},
		Theirs: ofWatermill,
		Tests:  []string{"leaktest", "outbox/outboxtest", "broker/brokertest", "relay", "store/memstore"},
	},
	"broker/webhook": {
		Ours:  []string{"outbox", "doctor", "broker"},
		Tests: []string{"leaktest", "broker/brokertest"},
	},

	// The program: the only place that knows all of them.
	"cmd/onward": {
		Ours: []string{"outbox", "broker", "broker/jsonl", "broker/discard", "doctor", "store", "relay", "relay/core", "store/postgres", "store/sqlite", "broker/nats", "broker/kafka", "broker/rabbitmq", "broker/redis", "broker/servicebus", "broker/webhook"},
		Theirs: slices.Concat(ofPostgres, ofSQLite, ofNATS, ofNATSServer, ofKafka, ofRabbitMQ, ofRedis, ofServiceBus, ofAzureIdentity, []string{
			"github.com/spf13/cobra", "github.com/spf13/pflag", "go.yaml.in/yaml/v3", "golang.org/x/term", "golang.org/x/sys",
		}),
		Tests: []string{"leaktest"},
	},
	"examples/orders": {
		Ours:   []string{"outbox", "broker", "store", "relay", "store/postgres", "broker/nats"},
		Theirs: slices.Concat(ofPostgres, ofNATS),
		Tests:  []string{"leaktest"},
	},
	"examples/start": {
		Ours:   []string{"outbox", "broker", "store", "relay", "store/postgres", "store/sqlite", "broker/nats"},
		Theirs: slices.Concat(ofPostgres, ofSQLite, ofNATS),
	},
	"e2e": {
		Ours: []string{
			"outbox", "broker", "broker/membroker", "store", "store/memstore", "relay", "relay/core", "store/postgres", "store/sqlite", "broker/nats", "broker/kafka", "broker/rabbitmq",
		},
		Theirs: slices.Concat(ofPostgres, ofSQLite, ofNATS, ofKafka, ofRabbitMQ, ofRedis, []string{"github.com/Azure/go-amqp", "golang.org/x/mod"}),
		Tests:  slices.Concat([]string{"leaktest", "store/storetest", "broker/brokertest", "broker/watermill", "github.com/ThreeDotsLabs/watermill-nats/v2"}, ofWatermill),
	},
}

// What the client libraries bring with them.
var (
	ofPostgres = []string{
		"github.com/jackc/pgx/v5", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile",
		"github.com/jackc/puddle/v2", "golang.org/x/sync", "golang.org/x/text",
	}
	ofSQLite = []string{
		"modernc.org/sqlite", "modernc.org/libc", "modernc.org/mathutil", "modernc.org/memory", "golang.org/x/sys",
		"github.com/dustin/go-humanize", "github.com/google/uuid", "github.com/mattn/go-isatty", "github.com/ncruces/go-strftime",
		"github.com/remyoudompheng/bigfft",
	}
	ofNATS = []string{
		"github.com/nats-io/nats.go", "github.com/nats-io/nkeys", "github.com/nats-io/nuid",
		"github.com/klauspost/compress", "golang.org/x/crypto", "golang.org/x/sys",
	}
	ofRabbitMQ  = []string{"github.com/rabbitmq/amqp091-go"}
	ofRedis     = []string{"github.com/redis/go-redis/v9", "github.com/cespare/xxhash/v2", "go.uber.org/atomic", "golang.org/x/sys"}
	ofWatermill = []string{
		"github.com/ThreeDotsLabs/watermill", "github.com/google/uuid", "github.com/lithammer/shortuuid/v3", "github.com/oklog/ulid", "github.com/pkg/errors",
	}
	// azservicebus is of the tests alone.
	ofServiceBus = []string{
		"github.com/Azure/go-amqp", "github.com/Azure/azure-sdk-for-go/sdk/azcore", "github.com/Azure/azure-sdk-for-go/sdk/internal",
		"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus", "golang.org/x/net", "golang.org/x/text",
	}
	ofAzureIdentity = []string{
		"github.com/Azure/azure-sdk-for-go/sdk/azidentity", "github.com/AzureAD/microsoft-authentication-library-for-go", "github.com/golang-jwt/jwt/v5",
		"github.com/google/uuid", "github.com/kylelemons/godebug", "github.com/pkg/browser",
	}
	ofKafka = []string{
		"github.com/twmb/franz-go", "github.com/twmb/franz-go/pkg/kmsg", "github.com/klauspost/compress", "github.com/pierrec/lz4/v4",
	}
	// Of the demo alone.
	ofNATSServer = []string{
		"github.com/nats-io/nats-server/v2", "github.com/nats-io/jwt/v2", "github.com/minio/highwayhash", "github.com/google/go-tpm",
		"github.com/antithesishq/antithesis-sdk-go", "golang.org/x/time",
	}
)

func workspace(t *testing.T) []Module {
	t.Helper()
	modules, err := Modules("../..")
	if err != nil {
		t.Fatal(err)
	}
	return modules
}

func TestEachModuleImportsOnlyWhatItMay(t *testing.T) {
	t.Parallel()
	for _, module := range workspace(t) {
		t.Run(module.Path, func(t *testing.T) {
			t.Parallel()
			packages, err := listPackages(t.Context(), module.Dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, violation := range violations(module.Path, packages, allowList) {
				t.Error(violation)
			}
		})
	}
}

// Whoever writes the allow-list is held to the arrows as well.
func TestTheAllowListKeepsTheArrows(t *testing.T) {
	t.Parallel()
	leaves := map[string]bool{}
	for _, module := range workspace(t) {
		if name := below(module.Path); strings.HasPrefix(name, "store/") || strings.HasPrefix(name, "broker/") {
			leaves[name] = true
		}
	}
	if len(leaves) == 0 {
		t.Fatal("no leaf module in the workspace")
	}
	for name, allowance := range allowList {
		above := strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "examples/") || name == "e2e"
		for _, other := range slices.Concat(allowance.Ours, allowance.Tests) {
			switch {
			case leaves[other] && !above:
				t.Errorf("%s may not import the leaf %s", name, other)
			case strings.HasPrefix(other, "internal/") && (above || leaves[name]):
				t.Errorf("%s may not import %s, which is internal to the root module", name, other)
			case name == "relay/core" && slices.Contains(allowance.Ours, other) && !slices.Contains([]string{"outbox", "store", "broker"}, other):
				t.Errorf("relay/core imports contract types alone, not %s", other)
			}
		}
	}
}

func TestTheRootModuleRequiresNothing(t *testing.T) {
	t.Parallel()
	root := workspace(t)[0]
	if root.Path != Root {
		t.Fatalf("the first module of the workspace is %s", root.Path)
	}
	for _, require := range root.File.Require {
		t.Errorf("the root module requires %s", require.Mod)
	}
}

func TestViolationsAreFound(t *testing.T) {
	t.Parallel()
	of := func(path string) *struct{ Path string } { return &struct{ Path string }{path} }
	leaf := Root + "/broker/mail"
	packages := map[string]pkg{
		"fmt":                       {ImportPath: "fmt", Standard: true},
		Root + "/broker":            {ImportPath: Root + "/broker", Module: of(Root)},
		Root + "/internal/bytesize": {ImportPath: Root + "/internal/bytesize", Module: of(Root)},
		"example.com/mail":          {ImportPath: "example.com/mail", Module: of("example.com/mail"), Imports: []string{"example.com/dns"}},
		"example.com/dns":           {ImportPath: "example.com/dns", Module: of("example.com/dns")},
		"example.com/quick":         {ImportPath: "example.com/quick", Module: of("example.com/quick")},
		leaf + "/wire":              {ImportPath: leaf + "/wire", Module: of(leaf)},
		leaf: {
			ImportPath:  leaf,
			Module:      of(leaf),
			Imports:     []string{"fmt", leaf + "/wire", Root + "/broker", Root + "/internal/bytesize", "example.com/mail"},
			TestImports: []string{"example.com/quick"},
		},
	}
	tight := map[string]Allowance{"broker/mail": {Ours: []string{"broker"}, Theirs: []string{"example.com/mail"}}}
	want := []string{
		"a test of " + leaf + " imports example.com/quick",
		leaf + " imports " + Root + "/internal/bytesize",
		leaf + " links example.com/dns",
	}
	if got := violations(leaf, packages, tight); !slices.Equal(got, want) {
		t.Errorf("violations = %q, want %q", got, want)
	}
	wide := map[string]Allowance{"broker/mail": {
		Ours:   []string{"broker", "internal/bytesize"},
		Theirs: []string{"example.com/mail", "example.com/dns"},
		Tests:  []string{"example.com/quick"},
	}}
	if got := violations(leaf, packages, wide); len(got) > 0 {
		t.Errorf("violations = %q with all of it allowed", got)
	}
	if got := violations(leaf, packages, nil); len(got) != 2 {
		t.Errorf("violations = %q without an allow-list, want one of each package", got)
	}
}

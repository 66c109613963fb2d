package readme

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const start = root + "/docs/getting-started.md"

var programMark = regexp.MustCompile(`<!-- program: (\S+) -->`)

// The programs of the page are those that are run, but for what is above their run.
func TestTheProgramsOfGettingStarted(t *testing.T) {
	t.Parallel()
	page := text(t, start)
	marks := programMark.FindAllStringSubmatch(page, -1)
	if len(marks) != 2 {
		t.Fatalf("the page has %d programs, want one for each database", len(marks))
	}
	for _, mark := range marks {
		program := text(t, filepath.Join(root, mark[1]))
		if _, below, _ := strings.Cut(program, "\nfunc run("); block(t, page, mark[0], "go") != "func run("+below {
			t.Errorf("the page and %s differ", mark[1])
		}
	}
}

// Each database's part of the page, block by block, each in a shell of its own as in a terminal of its own.
func TestTheCommandsOfGettingStarted(t *testing.T) {
	t.Parallel()
	page := text(t, start)
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			database, broker := servers(t)
			built(t)
			// The one thing that is not as written: the file is the test's own.
			every := strings.ReplaceAll(block(t, page, "<!-- "+kind+": every terminal -->", "sh"), "sqlite:shop.db", "sqlite:"+filepath.Join(t.TempDir(), "shop.db"))
			terminal := func(mark string) *session {
				return open(t, mark, every+block(t, page, "<!-- "+mark+" -->", "sh"), "ONWARD_TEST_POSTGRES_URL="+database, "ONWARD_TEST_NATS_URL="+broker)
			}
			terminal(kind+": terminal 1").await(t, `committed: an order and its message`, `leases.*owned=[1-9]`)
			terminal(kind+": terminal 2").await(t, `order-1 .*OrderPlaced`, `^orders `, `OrderPlaced .*{"id": 1, "total_cents": 1250}`)
			terminal("both: the relay beside").await(t, `"leases".*"relays":2`)
		})
	}
}

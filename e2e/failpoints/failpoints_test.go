// Package failpoints crashes the program at the lines that matter, on real servers, and sees to it that nothing is lost,
// reordered or repeated beyond a window.
package failpoints

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// crashes is for each line how the program gets there.
var crashes = map[string]func(*testing.T, string){
	"relay.settle.published":      underLoad(3), // published, and not settled
	"postgres.settle.before":      underLoad(3),
	"postgres.settle.committed":   underLoad(3), // settled, and the relay does not know
	"postgres.claim.before":       claimingLate,
	"postgres.claim.committed":    underLoad(1), // claimed, and the relay does not know
	"relay.giveback.settled":      givingBack,   // settled, and not given back
	"postgres.giveback.committed": givingBack,
	"postgres.takeover.locked":    takingOver, // a dead relay's row is locked
	"postgres.takeover.freed":     takingOver, // its partitions are freed, and nothing is committed
	"postgres.takeover.committed": takingOver,
	"postgres.park.sent":          parking, // what a settle with verdicts has come to is not known
	"postgres.retain.committed":   removing,
	"postgres.migrate.step":       migrating,
	"sqlite.settle.written":       onSQLite(2), // settled, and not committed
	"sqlite.settle.committed":     onSQLite(2),
	"sqlite.claim.written":        onSQLite(1),
	"sqlite.takeover.freed":       takingOverSQLite,
	"sqlite.migrate.step":         migratingSQLite,
}

func TestACrashAtAnyLineLosesNothing(t *testing.T) {
	t.Parallel()
	for _, line := range slices.Sorted(maps.Keys(crashes)) {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			crashes[line](t, line)
		})
	}
}

// A line that is marked and never crashed at proves nothing, and a crash at a line that is gone neither.
func TestEachFailpointIsCrashedAt(t *testing.T) {
	t.Parallel()
	marked := map[string]bool{}
	inCode(t, func(_, text string) {
		for _, match := range regexp.MustCompile(`failpoint\.Hit\("([^"]*)"\)`).FindAllStringSubmatch(text, -1) {
			marked[match[1]] = true
		}
	})
	for name := range marked {
		if crashes[name] == nil {
			t.Errorf("failpoint %s is crashed at by no test", name)
		}
	}
	for name := range crashes {
		if !marked[name] {
			t.Errorf("there is no failpoint %s in the code", name)
		}
	}
}

// Each module has its own copy of package failpoint: a change of one is a change of all.
func TestTheCopiesOfPackageFailpointAreEqual(t *testing.T) {
	t.Parallel()
	copies := map[string][]string{}
	inCode(t, func(path, text string) {
		if strings.HasSuffix(filepath.Dir(path), "internal/failpoint") {
			copies[filepath.Base(path)] = append(copies[filepath.Base(path)], text)
		}
	})
	if len(copies["on.go"]) != 3 || len(copies) != 2 {
		t.Errorf("there are %d copies, of %v", len(copies["on.go"]), slices.Sorted(maps.Keys(copies)))
	}
	for name, texts := range copies {
		if len(slices.Compact(texts)) != 1 {
			t.Errorf("the copies of %s differ", name)
		}
	}
}

// inCode visits the Go files of the product.
func inCode(t *testing.T, visit func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".." || entry.Name() == "e2e") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		visit(path, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// underLoad crashes a relay at the nth time that it comes to the line, while messages are written, and starts it again.
func underLoad(n int) func(*testing.T, string) {
	return func(t *testing.T, line string) {
		s := onPostgres(t, "")
		s.load()
		s.killed(s.relay("a", fmt.Sprintf("%s=crash@%d", line, n)), line)
		s.relay("a", "")
		s.proven(s.written())
	}
}

// givingBack: a relay crashes while it hands partitions over to one that has joined.
func givingBack(t *testing.T, line string) {
	s := onPostgres(t, "")
	s.load()
	first := s.relay("a", line+"=crash")
	s.must(s.collector.WaitFor(t.Context(), 50, patience))
	s.relay("b", "")
	s.killed(first, line)
	s.proven(s.written())
}

// claimingLate: a relay that stood still is taken over by one of another sink, which leaves the partitions free, before it claims them.
func claimingLate(t *testing.T, line string) {
	s := onPostgres(t, "")
	s.load()
	late := s.relay("late", fmt.Sprintf("%s=sleep:%v", line, 3*lease))
	registered := func(n int) func() bool {
		return func() bool {
			s.must(s.alive(late))
			var found int
			s.must(s.pool.QueryRow(t.Context(), `SELECT count(*) FROM `+s.name+`.outbox_relays WHERE name = 'late'`).Scan(&found))
			return found == n
		}
	}
	s.until("it is registered", registered(1))
	s.run("", "relay", "--set", "relay.name=other", "--set", "sinks[0].name=other", "--set", "sinks[0].topics=nothing")
	s.until("it is taken over", registered(0))
	s.until("it has claimed, and knows that it was taken over", func() bool { return strings.Contains(late.out.String(), "another relay has taken over") })
	s.must(late.cmd.Process.Kill())
	<-late.ended
	s.relay("next", "")
	s.proven(s.written())
}

// takingOver: a relay has crashed, and so does the one that takes its place.
func takingOver(t *testing.T, line string) {
	s := onPostgres(t, "")
	s.load()
	s.killed(s.relay("a", "relay.settle.published=crash@2"), "relay.settle.published")
	s.killed(s.relay("b", line+"=crash"), line)
	s.relay("c", "")
	s.proven(s.written())
}

// parking: a relay crashes while it parks messages whose time is ahead, and again while it takes away what has gone out.
func parking(t *testing.T, line string) {
	s := onPostgres(t, "")
	s.schedule(2 * window)
	s.killed(s.relay("a", line+"=crash"), line)
	s.must(s.untilParked(2*window, s.relay("a", "")))
	s.stop()
	s.dueNow()
	s.killed(s.relay("a", line+"=crash"), line)
	s.relay("a", "")
	s.proven(s.written())
	if n := s.count("parked"); n != 0 {
		t.Errorf("%d messages are still parked", n)
	}
}

// removing: a relay crashes after it has removed messages.
func removing(t *testing.T, line string) {
	s := onPostgres(t, "retention:\n  published: 0s\n")
	s.load()
	s.killed(s.relay("a", line+"=crash"), line)
	s.relay("a", "")
	ledger := s.written()
	s.must(s.collector.WaitFor(t.Context(), len(ledger), patience))
	s.until("retention goes on", func() bool { return s.count("messages") < len(ledger)/4 }) // what committed late goes later
	s.proven(ledger)
}

// migrating: a migration that crashed in a step is run again.
func migrating(t *testing.T, line string) {
	s := newStage(t)
	s.schemaOf(t)
	s.killed(s.run(line+"=crash@2", "migrate", "up"), line)
	s.succeeds("migrate", "up")
	s.succeeds("migrate", "validate")
}

func (s *stage) succeeds(args ...string) {
	s.t.Helper()
	p := s.run("", args...)
	<-p.ended
	if p.err != nil {
		s.t.Errorf("onward %s: %v\n%s", strings.Join(args, " "), p.err, p.out.String())
	}
}

// onSQLite is underLoad on an outbox in a file.
func onSQLite(n int) func(*testing.T, string) {
	return func(t *testing.T, line string) {
		s, written := inFile(t)
		s.killed(s.relay("a", fmt.Sprintf("%s=crash@%d", line, n)), line)
		s.relay("a", "")
		s.proven(written())
	}
}

func takingOverSQLite(t *testing.T, line string) {
	s, written := inFile(t)
	s.killed(s.relay("a", "relay.settle.published=crash@2"), "relay.settle.published")
	s.killed(s.relay("b", line+"=crash"), line)
	s.relay("c", "")
	s.proven(written())
}

func migratingSQLite(t *testing.T, line string) {
	s := newStage(t)
	s.configure(fmt.Sprintf("  url: sqlite:%s", filepath.Join(t.TempDir(), "shop.db")), "")
	s.killed(s.run(line+"=crash", "migrate", "up"), line)
	s.succeeds("migrate", "up")
	s.succeeds("migrate", "validate")
}

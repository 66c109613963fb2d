package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"
)

// environment is the console's for a run that is watched while it goes on.
func (c console) environment(in io.Reader, out, err io.Writer) Environment {
	return Environment{In: in, Out: out, Err: err, Environ: c.environ, Now: func() time.Time { return now }, AsksOnIn: c.asks, Patience: 10 * time.Millisecond}
}

// What takes its time says so, on stderr, unless words are not wanted.
func TestSlowCommandsSayThatTheyWork(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	tx, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), d.sql(`LOCK TABLE outbox_dead`)); err != nil {
		t.Fatal(err)
	}
	var out, words, outOfQuiet, quiet lines
	codes := make(chan int, 2)
	go func() {
		codes <- Run(t.Context(), []string{"dead", "list"}, d.environment(strings.NewReader(""), &out, &words))
	}()
	go func() {
		codes <- Run(t.Context(), []string{"dead", "list", "-q"}, d.environment(strings.NewReader(""), &outOfQuiet, &quiet))
	}()
	eventually(t, "it says that it works", func() bool { return strings.Contains(words.String(), "still working: ") })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if code := <-codes; code != exitDone {
			t.Errorf("code %d; it said %s%s", code, words.String(), quiet.String())
		}
	}
	if out.String() != outOfQuiet.String() || quiet.String() != "" {
		t.Errorf("the words are %q, with --quiet %q; the data %q and %q", words.String(), quiet.String(), out.String(), outOfQuiet.String())
	}
}

// Ctrl-C at the question means no.
func TestAStopAtTheQuestionDoesNothing(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	person := d.console
	person.asks = true
	silent, in := io.Pipe() // nobody ever answers
	defer func() { _ = in.Close() }()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out, words lines
	code := make(chan int, 1)
	go func() {
		code <- Run(ctx, []string{"dead", "requeue", "--sink", "orders"}, person.environment(silent, &out, &words))
	}()
	eventually(t, "it asks", func() bool { return strings.Contains(words.String(), "[y/N]") })
	stop()
	select {
	case got := <-code:
		if got != exitRefused || !strings.Contains(words.String(), "nothing was done") || d.states(t, 4, 6) != "dead, dead" {
			t.Errorf("code %d, the messages are %s; it said %s", got, d.states(t, 4, 6), words.String())
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it still asks")
	}
}

// A stop amid many acts finishes the one that was begun, and says how many were left; they can be done later.
func TestAStopLeavesTheRest(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out, words lines
	code := make(chan int, 1)
	go func() {
		code <- Run(ctx, []string{"dead", "requeue", "--sink", "orders", "--rate", "1", "--yes"}, d.environment(strings.NewReader(""), &out, &words))
	}()
	eventually(t, "the first is requeued", func() bool { return d.states(t, 4) == "parked retry" })
	eventually(t, "it says how far it is", func() bool { return strings.Contains(words.String(), " of 2 requeued: ") })
	stop()
	if got := <-code; got != exitFailed || !strings.Contains(words.String(), "1 message requeued; stopped before 1 more") || d.states(t, 4, 6) != "parked retry, dead" {
		t.Errorf("code %d, the messages are %s; it said %s", got, d.states(t, 4, 6), words.String())
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// An output that cannot be written is a failure, and no fault of the database.
func TestAFullDiskIsNotTheDatabase(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	var words lines
	code := Run(t.Context(), []string{"partitions", "list"}, d.environment(strings.NewReader(""), fullDisk{}, &words))
	if code != exitFailed || strings.Contains(words.String(), "database.url") || !strings.Contains(words.String(), syscall.ENOSPC.Error()) {
		t.Errorf("code %d; it said %s", code, words.String())
	}
	if unreachable(errors.Join(errSaid)) || !unreachable(&timeout{}) {
		t.Error("what is unreachable is mistaken")
	}
}

type timeout struct{}

func (*timeout) Error() string   { return "i/o timeout" }
func (*timeout) Timeout() bool   { return true }
func (*timeout) Temporary() bool { return true }

// Package cli is the command line of Onward. Data goes to stdout, words go to stderr, and the exit code says what became
// of it.
package cli

// The references in docs/ are written by the test that compares them.
//
//go:generate go test . -count 1 -run ^TestReferences$ -update

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"
)

// Environment is what a run of the program has around it.
type Environment struct {
	In            io.Reader
	Out, Err      io.Writer
	Environ       []string // as os.Environ gives it
	AsksOnIn      bool     // somebody sits there to answer: stdin and stderr are a terminal
	OutIsTerminal bool     // then tables may have colors
	ErrIsTerminal bool     // then the log is text
	Now           func() time.Time
	Columns       int           // width of the terminal that stdout is; 0: not known, or it is none
	Patience      time.Duration // a command that takes longer says that it is still at it, and again as often; 0: 2s, and each 5s
	// ErrSize is how large the terminal that stderr is is now; nil: 80 columns, 24 rows.
	ErrSize func() (columns, rows int)
	Program string // this program's file, for those that start it again; empty: as the system says
	// AtOnce takes what is to be done when a second signal ends the process; nil: nobody does it.
	AtOnce func(f func())
}

// Main runs the program in its process: with its arguments, files and signals. It does not return.
//
// The first SIGINT or SIGTERM ends the context, which stops a relay gracefully; the second ends the process at once.
func Main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	var last lastActs
	go func() { // ends with the process
		<-signals
		cancel()
		<-signals
		last.run()
		os.Exit(exitSignalled)
	}()
	terminal := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) } //nolint:gosec // a file descriptor
	code := Run(ctx, os.Args[1:], Environment{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Now: time.Now,
		AsksOnIn:      terminal(os.Stdin) && terminal(os.Stderr),
		OutIsTerminal: terminal(os.Stdout),
		ErrIsTerminal: terminal(os.Stderr),
		Columns:       columns(os.Stdout),
		ErrSize:       func() (columns, rows int) { return size(os.Stderr) },
		AtOnce:        last.add,
	})
	os.Exit(code)
}

// lastActs are what a second signal does before it ends the process.
type lastActs struct {
	mu   sync.Mutex
	acts []func()
}

func (l *lastActs) add(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acts = append(l.acts, f)
}

func (l *lastActs) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.acts {
		f()
	}
}

// columns is the width of a terminal; 0 where the file is none.
func columns(f *os.File) int {
	width, _ := size(f)
	return width
}

// size is that of a terminal; 0 where the file is none.
func size(f *os.File) (columns, rows int) {
	columns, rows, err := term.GetSize(int(f.Fd())) //nolint:gosec // a file descriptor
	if err != nil {
		return 0, 0
	}
	return columns, rows
}

// Run runs one command line and returns its exit code. It starts and ends no process and reads nothing but what it is
// given, so that a test, or another program, can call it.
func Run(ctx context.Context, args []string, env Environment) int {
	a := &app{env: env}
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	err := root.ExecuteContext(ctx)
	if err != nil {
		a.explain(err)
	}
	return exitCode(err)
}

// variable returns a variable of the environment.
func (e Environment) variable(name string) string {
	value := ""
	for _, pair := range e.Environ {
		if len(pair) > len(name) && pair[len(name)] == '=' && pair[:len(name)] == name {
			value = pair[len(name)+1:] // the last one counts, as in the process itself
		}
	}
	return value
}

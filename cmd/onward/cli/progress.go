package cli

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// A command that takes longer than patience says that it is still at it, and again each reminder.
const (
	patience = 2 * time.Second
	reminder = 5 * time.Second
)

// progress is what a command that takes its time says of itself.
type progress struct {
	words atomic.Pointer[func() string] // nil: nothing, since somebody is asked or data is written
}

// doing sets the words; nil keeps silent.
func (p *progress) doing(words func() string) {
	if words == nil {
		p.words.Store(nil)
		return
	}
	p.words.Store(&words)
}

func stillWorking() string { return "still working" }

// tell says how far the command is, until end is called.
func (a *app) tell() (end func()) {
	wait, again := a.env.Patience, a.env.Patience
	if wait == 0 {
		wait, again = patience, reminder
	}
	a.progress.doing(stillWorking)
	stop, stopped := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(stopped)
		timer := time.NewTimer(wait)
		defer timer.Stop()
		for {
			select {
			case <-stop:
				return
			case <-timer.C:
			}
			if words := a.progress.words.Load(); words != nil {
				a.say("%s: %s so far", (*words)(), span(time.Since(began).Round(time.Second)))
			}
			timer.Reset(again)
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// out is where data goes. Once it is asked for, no words come in between: a pager may sit at its other end.
func (a *app) out() io.Writer {
	a.progress.doing(nil)
	return a.env.Out
}

// doneOf writes "12 of 1,000 requeued".
func doneOf(n *atomic.Int64, all int, done string) func() string {
	return func() string { return fmt.Sprintf("%s of %s %s", count(n.Load()), count(int64(all)), done) }
}

package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/onwardhq/onward/store"
)

var waking = []spec{
	{"ACommitWakesWhoWaits", aWaker(commitWakes)},
	{"ASessionThatIsOverWaitsNoMore", aWaker(overWaitsNoMore)},
	{"AStoreThatIsClosedLetsNobodyWait", aWaker(closedLetsNobodyWait)},
}

// aWaker is a spec of sessions that hear of commits.
func aWaker(run func(*suite, *relay, store.Waker)) func(*suite) {
	return func(s *suite) {
		r := s.alone()
		w, ok := r.session.(store.Waker)
		if !ok {
			s.lacks("hints: relays poll")
			return
		}
		run(s, r, w)
	}
}

// wait begins to wait; its end is what the channel gives.
func (s *suite) wait(w store.Waker) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- w.Wait(s.ctx) }()
	return ended
}

func (s *suite) within(what string, ended <-chan error) error {
	s.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(s.Patience):
		s.Fatalf("%s: not within %s", what, s.Patience)
		return nil
	}
}

// promised reads until hints are promised, and settles what comes.
func (r *relay) promised() {
	r.s.Helper()
	room := r.room()
	room.Await = true
	r.s.until("a hint is promised", func() bool {
		page, _ := r.page(room)
		r.settleAll()
		return page.Awaited > 0
	})
}

func commitWakes(s *suite, r *relay, w store.Waker) {
	page, _ := r.page(r.room())
	s.want("what is promised to who does not ask", page.Awaited, time.Duration(0))
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if err := w.Wait(ctx); err != nil && !errors.Is(err, context.Canceled) {
		s.Errorf("wait, with a context that has ended: %v", err)
	}
	r.promised()
	for range 3 { // hints come twice, and early
		s.until("nothing is hinted at", func() bool {
			ctx, cancel := context.WithTimeout(s.ctx, 20*time.Millisecond)
			defer cancel()
			return w.Wait(ctx) != nil
		})
		r.promised()
		ended := s.wait(w)
		s.send(s.message("m", "k"))
		s.ok(s.within("a hint of the commit", ended), "wait")
		s.want("messages", names(r.drain()), []string{"m"})
		r.settleAll()
	}
}

func overWaitsNoMore(s *suite, r *relay, w store.Waker) {
	ended := s.wait(w)
	s.ok(r.session.Close(s.ctx), "close")
	for err := s.within("the end", ended); err == nil; { // the hints from before
		err = w.Wait(s.ctx)
		s.wantError("wait", err, store.ErrFenced)
	}
	s.until("wait is refused", func() bool { return w.Wait(s.ctx) != nil })
}

func closedLetsNobodyWait(s *suite, r *relay, w store.Waker) {
	ended := s.wait(w)
	s.ok(r.store.Close(), "close store")
	_ = r.session.Close(s.ctx)
	for s.within("the end", ended) == nil {
		ended = s.wait(w)
	}
}

package leaktest

import (
	"strings"
	"testing"
	"time"
)

// tests are what a package's tests do.
type tests func() (code int)

func (t tests) Run() int { return t() }

// leave starts a goroutine that lives until the channel is closed.
func leave(until chan struct{}) {
	started := make(chan struct{})
	go func() {
		close(started)
		<-until
	}()
	<-started
}

//nolint:paralleltest // it looks at all goroutines of its process, of which no other test may start one meanwhile
func TestGoroutinesThatAreLeftAreFound(t *testing.T) {
	until := make(chan struct{})
	leave(until)
	var said strings.Builder
	if code := check(&said, 20*time.Millisecond, always); code != 1 || !strings.Contains(said.String(), "leaktest.leave") {
		t.Errorf("code %d, said %q", code, said.String())
	}
	if code := Main(tests(func() int { return 0 }), "leaktest.leave"); code != 0 {
		t.Errorf("code %d although it may stay", code)
	}
	if code := Main(tests(func() int { return 3 })); code != 3 {
		t.Errorf("code %d, want that of the tests", code)
	}
	time.AfterFunc(20*time.Millisecond, func() { close(until) })
	if code := Main(tests(func() int { return 0 })); code != 0 {
		t.Errorf("code %d although it has ended", code)
	}
}

// More goroutines than fit into the first try of reading their stacks.
//
//nolint:paralleltest // as above
func TestManyGoroutinesAreFound(t *testing.T) {
	until := make(chan struct{})
	const n = 5000
	for range n {
		leave(until)
	}
	if left := remaining(always); len(left) != n {
		t.Errorf("%d were found, want %d", len(left), n)
	}
	close(until)
	if code := check(t.Output(), grace, always); code != 0 {
		t.Errorf("code %d", code)
	}
}

package outbox

import (
	"testing"
	"time"
)

// The vector is RFC 9562, appendix A.4.
func TestVersion5Vector(t *testing.T) {
	t.Parallel()
	dns := ID{0x6b, 0xa7, 0xb8, 0x10, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}
	if got, want := version5(dns, "www.example.com").String(), "2ed6657d-e927-568b-95e1-2665a8aea6a2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestTicksGrowWhenTheClockGoesBack(t *testing.T) {
	t.Parallel()
	now := time.Now()
	last := tick(now)
	for _, at := range []time.Time{now, now.Add(-time.Hour), now, now.Add(time.Nanosecond)} {
		next := tick(at)
		if next <= last {
			t.Errorf("tick %d at %v, after %d", next, at, last)
		}
		last = next
	}
}

package cli

import (
	"strings"
	"testing"
	"time"
)

// What is read as a time ago lies in the past, and as far as was said; what is read as a date is that date.
func FuzzTimes(f *testing.F) {
	for _, s := range []string{"10m", "24h", "2d", "0d", "-1h", "2026-01-31", "2026-01-31T15:04:05Z", "2026-01-31 15:04", "9223372036854775807d", "106752d", "1d\n", "+5d", " 5d", "0x10d", "1_0d", "2562047h", "9999-12-31T23:59:59.999999999+14:00"} {
		f.Add(s)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		moment, noMoment := parseMoment(s)
		at, err := parseTime(s, now)
		switch {
		case s == "":
			if err != nil || !at.IsZero() {
				t.Errorf("nothing is %s, %v", at, err)
			}
		case err != nil:
			if noMoment == nil || !strings.Contains(err.Error(), "write") {
				t.Errorf("%q: %v", s, err)
			}
		case noMoment == nil:
			if !at.Equal(moment) {
				t.Errorf("%q is %s as a time, and %s as a moment", s, at, moment)
			}
		case at.After(now) || at.Year() < -500:
			t.Errorf("%q ago is %s", s, at)
		}
		span, err := parseSpan(s)
		if err != nil {
			return
		}
		if span <= 0 {
			t.Errorf("%q lasts %s", s, span)
		}
		if days, ok := strings.CutSuffix(s, "d"); ok && (span%(24*time.Hour) != 0 || strings.Trim(days, "0123456789") != "") {
			t.Errorf("%q lasts %s", s, span)
		}
		if at.IsZero() || !at.Equal(now.Add(-span)) {
			t.Errorf("%q lasts %s, and that time ago was %s", s, span, at)
		}
	})
}

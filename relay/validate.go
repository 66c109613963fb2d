package relay

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

var sinkName = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)

// faults gathers what is wrong with a configuration.
type faults []string

func (f *faults) if_(wrong bool, format string, args ...any) {
	if wrong {
		*f = append(*f, fmt.Sprintf(format, args...))
	}
}

func (c *Config) validate() error {
	var f faults
	f.if_(c.Store == nil, "Store is missing")
	f.if_(len(c.Sinks) == 0, "Sinks is empty: name a sink and its publisher")
	f.if_(len(c.Name) > 200, "Name has %d bytes: at most 200", len(c.Name))
	lease := c.Lease
	if lease == 0 {
		lease = 15 * time.Second
	}
	f.if_(lease < 100*time.Millisecond, "Lease is %v: at least 100ms", c.Lease)
	f.if_(c.Heartbeat < 0 || c.Heartbeat > lease/3, "Heartbeat is %v: at most a third of Lease (%v)", c.Heartbeat, lease)
	f.if_(c.PollMin < 0 || c.PollMax < 0 || c.PollMax != 0 && c.PollMax < c.PollMin, "PollMin is %v, PollMax %v: want 0 <= PollMin <= PollMax", c.PollMin, c.PollMax)
	f.if_(c.Wakeup != "" && c.Wakeup != WakeupAuto && c.Wakeup != WakeupOff, "Wakeup is %q: want auto or off", c.Wakeup)
	f.if_(!slices.Contains([]string{"", OnUnsafeWarn, OnUnsafeRefuse, OnUnsafeIgnore}, c.OnUnsafe), "OnUnsafe is %q: want warn, refuse or ignore", c.OnUnsafe)
	f.if_(c.ShutdownGrace < 0, "ShutdownGrace is %v: not negative", c.ShutdownGrace)
	f.if_(c.Page < 0 || c.Page > 100_000, "Page is %d: 1 to 100000", c.Page)
	f.if_(c.RoundEvery < 0 || c.RoundEvery > 0 && c.RoundEvery < time.Millisecond, "RoundEvery is %v: at least 1ms", c.RoundEvery)
	f.if_(c.PageBytes < 0, "PageBytes is %d: not negative", c.PageBytes)
	c.Retention.validate(&f)
	served := 0
	for i := range c.Sinks {
		s := &c.Sinks[i]
		s.validate(&f, fmt.Sprintf("Sinks[%d]", i))
		f.if_(slices.ContainsFunc(c.Sinks[:i], func(other Sink) bool { return other.Name == s.Name }), "Sinks[%d].Name: %q is there twice", i, s.Name)
		if !s.Disabled {
			served++
		}
	}
	f.if_(len(c.Sinks) > 0 && served == 0, "every sink is disabled: nothing is left to do")
	for i, t := range c.Topics {
		place := fmt.Sprintf("Topics[%d]", i)
		if err := t.Match.Validate(); err != nil {
			f = append(f, place+".Match: "+err.Error())
		}
		f.if_(!validOnDead(t.OnDead), "%s.OnDead is %q: want block or skip", place, t.OnDead)
		f.if_(t.MaxPayload < 0, "%s.MaxPayload is %d: not negative", place, t.MaxPayload)
	}
	if f == nil {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "relay configuration", Detail: strings.Join(f, "; ")}
}

func (s *Sink) validate(f *faults, place string) {
	f.if_(!sinkName.MatchString(s.Name), "%s.Name is %q: want 1 to 64 of a-z, 0-9, _ and -", place, s.Name)
	f.if_(s.Publisher == nil && !s.Disabled, "%s.Publisher is missing", place)
	for what, patterns := range map[string][]outbox.Pattern{"Topics": s.Topics, "Exclude": s.Exclude} {
		for i, p := range patterns {
			if err := p.Validate(); err != nil {
				*f = append(*f, fmt.Sprintf("%s.%s[%d]: %v", place, what, i, err))
			}
		}
	}
	f.if_(s.Start.Latest && !s.Start.Since.IsZero(), "%s.Start says Latest and Since: one of the two", place)
	f.if_(!validOnDead(s.OnDead), "%s.OnDead is %q: want block or skip", place, s.OnDead)
	if s.DeadTopic != "" {
		if _, err := broker.ParseTemplate(s.DeadTopic); err != nil {
			*f = append(*f, fmt.Sprintf("%s.DeadTopic: %v", place, err))
		}
	}
	f.if_(s.Window.Messages < 0 || s.Window.Bytes < 0, "%s.Window is negative", place)
	f.if_(s.Settle.Every < 0 || s.Settle.Count < 0, "%s.Settle is negative", place)
	f.if_(s.PublishTimeout < 0, "%s.PublishTimeout is %v: not negative", place, s.PublishTimeout)
	r := s.Retry
	f.if_(r.First < 0 || r.Max < 0 || r.Max != 0 && r.Max < r.First, "%s.Retry: want 0 <= First <= Max", place)
	f.if_(r.Attempts < -1, "%s.Retry.Attempts is %d: want -1 (for ever), 0 (10) or more", place, r.Attempts)
	b := s.Breaker
	f.if_(b.Failures < 0 || b.First < 0 || b.Max < 0 || b.Max != 0 && b.Max < b.First, "%s.Breaker: want 0 <= First <= Max and Failures >= 0", place)
}

func validOnDead(s string) bool { return s == "" || s == "block" || s == "skip" }

func newRand() *rand.Rand { return rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) }

package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

// What a relay does where the settings of its database or of a broker are unsafe: Config.OnUnsafe.
const (
	// OnUnsafeWarn says in the log what is wrong, once, while the relay works. The default.
	OnUnsafeWarn = "warn"
	// OnUnsafeRefuse publishes nothing before every server has been examined, and ends with ErrUnsafe where one is unsafe.
	OnUnsafeRefuse = "refuse"
	// OnUnsafeIgnore does not look.
	OnUnsafeIgnore = "ignore"
)

// ErrUnsafe is what Run refuses with: the settings of a server can lose what was committed or acknowledged.
var ErrUnsafe = &outbox.Error{Code: "onward/settings-unsafe", Detail: "the settings of a server can lose what it has taken"}

const (
	examineTimeout = 20 * time.Second
	samplesRead    = 1000
	samplesKept    = 50 // messages with different topics, for each sink
)

// Subjects are the servers of a relay, as doctor.Examine takes them: the database where there is one (a store, or whatever
// else examines it), and each sink that is not disabled. topics are further ones that the sinks may get; those that a sink
// names without wildcards are asked about anyway, and so are those of the newest messages where database is a doctor.Sampler.
//
// Of c only Sinks, Topics and Lease count.
func Subjects(ctx context.Context, c *Config, database any, topics []string) []doctor.Subject {
	var all []doctor.Subject
	if database != nil {
		examiner, _ := database.(doctor.Examiner)
		all = append(all, doctor.Subject{Kind: doctor.KindDatabase, Examiner: examiner})
	}
	var newest []*outbox.Record
	if sampler, ok := database.(doctor.Sampler); ok {
		ctx, cancel := context.WithTimeout(ctx, examineTimeout)
		newest, _ = sampler.Newest(ctx, samplesRead) // that the database does not answer, its examination says
		cancel()
	}
	for i := range c.Sinks {
		s := &c.Sinks[i]
		if s.Disabled {
			continue
		}
		examiner, _ := s.Publisher.(doctor.Examiner)
		all = append(all, doctor.Subject{Kind: doctor.KindSink, Name: s.Name, Examiner: examiner, Question: c.question(s, newest, topics)})
	}
	return all
}

func (c *Config) question(s *Sink, newest []*outbox.Record, topics []string) doctor.Question {
	lease := c.Lease
	def(&lease, 15*time.Second)
	retry, breaker, timeout := s.Retry.Max, s.Breaker.Max, s.PublishTimeout
	def(&retry, 10*time.Minute)
	def(&breaker, 30*time.Second)
	def(&timeout, 10*time.Second)
	q := doctor.Question{Retry: max(retry, breaker, lease) + timeout}
	seen := map[string]bool{}
	for _, r := range newest {
		if len(q.Samples) < samplesKept && !seen[r.Topic] && s.Match(r.Topic) {
			seen[r.Topic] = true
			q.Samples = append(q.Samples, r)
		}
	}
	literal := make([]string, 0, len(s.Topics))
	for _, p := range s.Topics {
		if !strings.ContainsAny(string(p), "*>") {
			literal = append(literal, string(p))
		}
	}
	for _, topic := range append(literal, topics...) {
		if !seen[topic] && s.Match(topic) {
			seen[topic] = true
			q.Samples = append(q.Samples, &outbox.Record{Message: outbox.Message{ID: outbox.NewID(), Topic: topic, Type: topic}})
		}
	}
	for topic := range seen {
		q.MaxPayload = max(q.MaxPayload, c.maxPayload(topic))
	}
	return q
}

// maxPayload is the largest payload of a topic where a rule says it; else 0.
func (c *Config) maxPayload(topic string) int {
	for _, t := range c.Topics {
		if t.Match.Match(topic) {
			if t.MaxPayload == outbox.MaxPayload { // what writers may write anyway
				return 0
			}
			return t.MaxPayload
		}
	}
	return 0
}

// examine does what OnUnsafe says, before the sinks are served. wait ends what it has started.
func (r *Relay) examine(ctx context.Context) (wait func(), err error) {
	switch {
	case r.config.OnUnsafe == OnUnsafeRefuse:
		return func() {}, r.refuseUnsafe(ctx)
	case r.config.OnUnsafe == OnUnsafeIgnore || r.once: // a pass each minute would say the same each minute
		return func() {}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() { r.warnUnsafe(ctx) })
	return func() { cancel(); looking.Wait() }, nil
}

// warnUnsafe examines every server once, those that do not answer when they do.
func (r *Relay) warnUnsafe(ctx context.Context) {
	_ = r.examineAll(ctx, func(a *doctor.Answer) error {
		r.say(a)
		return nil
	})
}

// refuseUnsafe returns once every server has answered, with the first that is unsafe.
func (r *Relay) refuseUnsafe(ctx context.Context) error {
	return r.examineAll(ctx, func(a *doctor.Answer) error {
		r.say(a)
		return unsafe(a)
	})
}

// examineAll calls f with each answer, and asks those again that gave none, until all have or f returns an error or ctx ends.
func (r *Relay) examineAll(ctx context.Context, f func(*doctor.Answer) error) error {
	subjects := Subjects(ctx, &r.config, r.config.Store, nil)
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		var left []doctor.Subject
		var refusals []error
		for _, a := range doctor.Examine(ctx, examineTimeout, subjects...) {
			switch {
			case ctx.Err() != nil:
				return nil //nolint:nilerr // the end of ctx is the caller's wish
			case a.Subject.Examiner == nil: // nothing to say: a test's, or somebody's own
			case a.Err != nil:
				r.log.Debug("not examined yet", "what", subjectName(&a), "error", a.Err, "again_in", wait)
				left = append(left, a.Subject)
			default:
				refusals = append(refusals, f(&a))
			}
		}
		if err := errors.Join(refusals...); err != nil || len(left) == 0 {
			return err
		}
		if subjects = left; !sleep(ctx, wait) {
			return nil
		}
	}
}

// say writes what hurts to the log.
func (r *Relay) say(a *doctor.Answer) {
	for _, f := range a.Findings {
		if f.Severity >= doctor.Warning {
			r.log.LogAttrs(context.Background(), slog.LevelWarn, "settings", slog.String("what", subjectName(a)), slog.String("severity", f.Severity.String()),
				slog.String("check", f.Check), slog.String("where", f.Where), slog.String("read", f.Read), slog.String("means", f.Means), slog.String("fix", f.Fix))
		}
	}
}

func subjectName(a *doctor.Answer) string { return strings.TrimSpace(a.Kind + " " + a.Name) }

// unsafe is the refusal of what is not safe, or nil.
func unsafe(a *doctor.Answer) error {
	var reads []string
	fix := ""
	for _, f := range a.Findings {
		if f.Severity == doctor.Unsafe {
			reads = append(reads, strings.TrimSpace(f.Where+" "+f.Read))
			if fix == "" {
				fix = f.Fix
			}
		}
	}
	if reads == nil {
		return nil
	}
	return &outbox.Error{
		Code: ErrUnsafe.Code, Op: "examine " + subjectName(a), Detail: fmt.Sprintf("%s: %s", strings.Join(reads, "; "), a.Worth),
		Hint: fix + " (`onward doctor` has all of it; relay.on_unsafe: warn starts all the same)",
	}
}

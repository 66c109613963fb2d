package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
)

// A feed serves one sink of a relay: its session, and the turns on it.
type feed struct {
	relay    *Relay
	sink     *Sink
	rules    core.Rules
	log      *slog.Logger
	database trouble

	partitions int // of the sink
}

func (r *Relay) newFeed(s *Sink, info store.Info) *feed {
	log := r.log.With("sink", s.Name)
	return &feed{relay: r, sink: s, rules: r.coreRules(s, info), log: log, database: newTrouble(log), partitions: info.Partitions}
}

// run serves the sink until ctx ends, or it cannot be served.
func (f *feed) run(ctx context.Context) error {
	if f.sink.Disabled {
		return f.register(ctx)
	}
	var failed outbox.ID
	for replaced := false; ctx.Err() == nil; replaced = true {
		failed = f.relay.identity(failed)
		session, err := f.join(ctx, failed, replaced)
		if err != nil {
			return err
		}
		if session == nil {
			return nil // ctx ended while waiting
		}
		err = f.serve(ctx, session)
		if !errors.Is(err, store.ErrFenced) {
			return err
		}
		f.log.Warn("another relay has taken over: joining again")
	}
	return nil
}

// register makes a sink that is not served.
func (f *feed) register(ctx context.Context) error {
	err := f.relay.retry(ctx, &f.database, "register", refused, func(ctx context.Context) error {
		return f.relay.config.Store.Register(ctx, f.asked())
	})
	if err == nil && ctx.Err() == nil {
		f.log.Info("this sink is disabled: it is registered, and nothing of it is published")
	}
	return err
}

// asked is the sink as the store knows it.
func (f *feed) asked() store.Sink {
	return store.Sink{Name: f.sink.Name, Selection: f.sink.Selection, Start: f.sink.Start, Settings: f.describe()}
}

// join registers the relay on the sink; nil without an error when ctx ended first. A relay that was replaced does not wait for
// whoever has its name now.
func (f *feed) join(ctx context.Context, id outbox.ID, replaced bool) (session store.Session, err error) {
	c := &f.relay.config
	host, _ := os.Hostname()
	forGood := func(err error) bool { return refused(err) || replaced && errors.Is(err, store.ErrNameTaken) }
	err = f.relay.retry(ctx, &f.database, "join", forGood, func(ctx context.Context) (err error) {
		session, err = c.Store.Join(ctx, store.Relay{
			ID: id, Name: c.Name, NoLeasing: c.NoLeasing, Host: host, PID: os.Getpid(), Version: c.Version,
			Lease: c.Lease, Heartbeat: c.Heartbeat, Page: c.Page, PageBytes: c.PageBytes,
		}, f.asked())
		return err
	})
	if err != nil && replaced {
		return nil, fmt.Errorf("another relay took over and has the name now: %w", err)
	}
	return session, err
}

// serve runs turns on a session until it ends. Only a graceful end, or a session that is over, returns.
func (f *feed) serve(ctx context.Context, session store.Session) error {
	wait := time.Duration(0)
	for {
		t := f.newTurn(session)
		f.database.reloaded()
		err := t.run(ctx)
		switch {
		case err == nil:
			return f.leave(session)
		case errors.Is(err, store.ErrFenced):
			return err
		case !errors.Is(err, store.ErrReload):
			return errors.Join(err, f.leave(session))
		case ctx.Err() != nil:
			return f.leave(session)
		}
		session.Reset() // the turn has ended, with all its calls: nobody holds what they handed over
		if wait = min(2*wait, 5*time.Second); wait == 0 || time.Since(t.start) > 10*time.Second {
			wait = 20 * time.Millisecond
		}
		f.database.failed(loadSession, "loading the session again from the database", err, "again_in", wait)
		if away := f.relay.databaseAway(&f.database); away != nil {
			return errors.Join(away, f.leave(session))
		}
		sleep(ctx, wait) // what voids a session again and again must not become a busy loop
	}
}

// leave gives everything back; what it cannot is taken over when the lease ends.
func (f *feed) leave(session store.Session) error {
	ctx, cancel := context.WithTimeout(context.Background(), max(f.relay.config.Heartbeat, time.Second))
	defer cancel()
	if err := session.Close(ctx); err != nil && !errors.Is(err, store.ErrFenced) {
		f.log.Warn("leases not given back: others take over when they end", "error", err)
		return nil
	}
	f.log.Info("stopped: everything settled and given back")
	return nil
}

func (r *Relay) coreRules(s *Sink, info store.Info) core.Rules {
	rules := core.Rules{
		Messages: s.Window.Messages, Bytes: s.Window.Bytes, Page: r.config.Page, PageBytes: r.config.PageBytes,
		SettleEvery: s.Settle.Every, SettleCount: s.Settle.Count, PublishTimeout: s.PublishTimeout,
		PollMin: r.config.PollMin, PollMax: r.config.PollMax, LeaseMargin: r.config.Lease / 10,
		Retry: s.Retry, Breaker: s.Breaker, Once: r.once,
		Lineage: info.Lineage, Relay: r.config.Name, Positions: s.RecordPositions, Letters: s.DeadTopic != "", Topic: topicRules(s.OnDead, r.config.Topics), Rand: newRand(),
	}
	if s.Publisher != nil {
		c := s.Publisher.Capabilities()
		rules.Pipeline, rules.Claims = c.Pipeline, c.Claims
	}
	return rules
}

// describe is how a relay serves the sink, in a line of what is not the default: relays whose lines differ are shown to people.
func (f *feed) describe() string {
	list := func(patterns []outbox.Pattern) string {
		words := make([]string, len(patterns))
		for i, p := range patterns {
			words[i] = string(p)
		}
		return strings.Join(words, ",")
	}
	var line []string
	say := func(name string, value, usual any) {
		if value != usual {
			line = append(line, fmt.Sprintf("%s=%v", name, value))
		}
	}
	r, usual := f.rules.Filled(), core.Rules{}.Filled()
	say("topics", list(f.sink.Topics), "")
	say("exclude", list(f.sink.Exclude), "")
	say("wakeup", cmp.Or(f.relay.config.Wakeup, WakeupAuto), WakeupAuto)
	say("window.messages", r.Messages, usual.Messages)
	say("window.bytes", r.Bytes, usual.Bytes)
	say("settle.every", r.SettleEvery, usual.SettleEvery)
	say("settle.count", r.SettleCount, usual.SettleCount)
	say("publish_timeout", r.PublishTimeout, usual.PublishTimeout)
	say("retry.fixed", r.Retry.Fixed, usual.Retry.Fixed)
	say("retry.first", r.Retry.First, usual.Retry.First)
	say("retry.max", r.Retry.Max, usual.Retry.Max)
	say("retry.attempts", r.Retry.Attempts, usual.Retry.Attempts)
	say("breaker.failures", r.Breaker.Failures, usual.Breaker.Failures)
	say("breaker.first", r.Breaker.First, usual.Breaker.First)
	say("breaker.max", r.Breaker.Max, usual.Breaker.Max)
	say("dead_topic", f.sink.DeadTopic, "")
	say("record_positions", r.Positions, usual.Positions)
	say("leasing", !f.relay.config.NoLeasing, true)
	kept := f.relay.config.Retention
	kept.fill()
	say("retention.published", kept.published(), usualRetention)
	say("retention.dead", kept.Dead, time.Duration(0))
	if d, ok := f.sink.Publisher.(broker.Describer); ok && d.Describe() != "" {
		line = append(line, d.Describe())
	}
	if f.sink.OnDead != "" {
		say("on_dead", f.sink.OnDead, "block")
	}
	for _, t := range f.relay.config.Topics {
		say("topic "+string(t.Match), fmt.Sprintf("%+v", t), "")
	}
	return strings.Join(line, " ")
}

// topicRules remembers what holds for each topic; topics are few.
func topicRules(onDead string, rules []Topic) func(string) core.Topic {
	known := map[string]core.Topic{}
	return func(topic string) core.Topic {
		t, ok := known[topic]
		if ok {
			return t
		}
		t.Skips = onDead == "skip"
		for _, rule := range rules {
			if rule.Match.Match(topic) {
				t = core.Topic{Skips: rule.OnDead == "skip" || rule.OnDead == "" && t.Skips, RequireKey: rule.RequireKey, MaxPayload: rule.MaxPayload}
				break
			}
		}
		if len(known) < 10_000 {
			known[strings.Clone(topic)] = t
		}
		return t
	}
}

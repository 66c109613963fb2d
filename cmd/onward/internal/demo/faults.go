package demo

import (
	"context"
	"time"
)

// Fault is what the demo does to the system while the service writes.
type Fault string

// The faults.
const (
	HandOver Fault = "none"   // nothing breaks: a relay is stopped as a deployment would, and started again
	Broker   Fault = "broker" // the nats-server is away for some seconds
	Poisoned Fault = "poison" // some messages are refused by the stream
	Crash    Fault = "crash"  // a relay is killed
)

// Faults lists what `--fail` takes.
var Faults = []Fault{Broker, Poisoned, Crash}

// victim is the relay that is stopped or killed.
const victim = "relay-us"

// act is a step of a fault's story.
type act struct {
	at float64 // 0 to 1: when, of the time that the service writes
	do func(ctx context.Context) error
}

// story is what happens, in its order. An act that was begun is finished when ctx ends.
func (d *demo) story() []act {
	switch d.Fault {
	case Broker:
		return []act{{0.35, d.breakBroker}}
	case Poisoned:
		return []act{{0.6, d.repair}}
	case Crash:
		return []act{{0.35, d.killRelay}, {0.7, d.startVictim}}
	case HandOver:
	}
	return []act{{0.4, d.stopRelay}, {0.7, d.startVictim}}
}

// play runs the story beside the service.
func (d *demo) play(ctx context.Context) error {
	began := time.Now()
	for _, a := range d.story() {
		if !sleep(ctx, time.Until(began.Add(time.Duration(a.at*float64(d.For))))) {
			return nil
		}
		if err := a.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// breakBroker stops the server, and starts it again even if the run is ended meanwhile: the rest must be able to go out.
func (d *demo) breakBroker(ctx context.Context) error {
	away := min(d.For/5, 6*time.Second)
	d.board.happened(Act, "nats-server is stopped for %s: the backlog grows, and no message pays an attempt for it", round(away))
	d.server.stop()
	d.board.brokerIs(true)
	sleep(ctx, away)
	if err := d.server.start(); err != nil {
		return err
	}
	d.endings++
	d.board.brokerIs(false)
	d.board.happened(Act, "nats-server is back at the same address: what waited goes out, in order")
	return nil
}

// killRelay ends a relay as the kernel would when memory is out.
func (d *demo) killRelay(context.Context) error {
	d.endings++
	d.board.happened(Act, "%s is killed (SIGKILL): no goodbye, its lease of %s runs out first", victim, lease)
	d.board.relayIs(victim, "killed")
	return d.relay(victim).kill()
}

// stopRelay ends a relay as a deployment does.
func (d *demo) stopRelay(ctx context.Context) error {
	d.board.happened(Act, "%s is stopped (SIGTERM), as by a deployment: it settles and gives its lease back", victim)
	d.board.relayIs(victim, "stopped")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return d.relay(victim).stop(ctx)
}

// startVictim starts the relay again once another one has its sink: it would wait for its own old lease otherwise.
func (d *demo) startVictim(ctx context.Context) error {
	for d.board.serves(victim) {
		if !sleep(ctx, lookEvery) {
			return nil
		}
	}
	d.board.relayIs(victim, "")
	d.board.happened(Act, "%s is started again: it stands by for its sink", victim)
	return d.relay(victim).start()
}

// repair does what an operator would who has looked at the dead letters: the stream takes larger messages, and those that were
// too large are tried again. Those without a subject stay for people to look at.
func (d *demo) repair(ctx context.Context) error {
	for d.board.look().Dead < int64(len(d.service.work.poison)) && sleep(ctx, lookEvery) {
		continue // the operator waits until all are there
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	d.board.happened(Act, "the operator lets the stream take larger messages (max_msg_size)")
	if err := makeStream(ctx, d.server.url(), widerMax); err != nil {
		return err
	}
	command := []string{"dead", "requeue", "--code", "onward/payload-too-large", "--yes"}
	d.board.happened(Act, "$ onward dead requeue --code onward/payload-too-large --yes")
	if err := d.Onward(ctx, append(command, "--config", d.config)...); err != nil {
		return err
	}
	d.board.happened(Good, "they are tried again at their places; what waited behind them follows, in order")
	return nil
}

// sleep reports whether the time has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

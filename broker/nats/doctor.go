package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

var _ doctor.Examiner = (*Publisher)(nil)

// told is what the server says of the stream, as far as it decides what an acknowledgement is worth.
type told struct {
	Config struct {
		Subjects          []string      `json:"subjects"`
		Retention         string        `json:"retention"`
		Storage           string        `json:"storage"`
		Replicas          int           `json:"num_replicas"`
		Discard           string        `json:"discard"`
		RefusesPerSubject bool          `json:"discard_new_per_subject"`
		MaxMsgs           int64         `json:"max_msgs"`
		MaxBytes          int64         `json:"max_bytes"`
		MaxMsgsPerSubject int64         `json:"max_msgs_per_subject"`
		MaxAge            time.Duration `json:"max_age"`
		Duplicates        time.Duration `json:"duplicate_window"`
		NoAck             bool          `json:"no_ack"`
		Sealed            bool          `json:"sealed"`
	} `json:"config"`
	State struct {
		Consumers int `json:"consumer_count"`
	} `json:"state"`
	Cluster struct {
		Leader   string `json:"leader"`
		Replicas []struct {
			Name    string `json:"name"`
			Current bool   `json:"current"`
			Offline bool   `json:"offline"`
		} `json:"replicas"`
	} `json:"cluster"`
	Now   time.Time        `json:"ts"` // since NATS 2.10
	Error *natsgo.APIError `json:"error"`
}

// Examine reads the stream's settings, and the server's where Config.MonitorURL leads to its monitoring: what an
// acknowledgement is worth. It waits for the connection until ctx ends.
func (p *Publisher) Examine(ctx context.Context, q doctor.Question) (doctor.Diagnosis, error) {
	nc, err := p.connected(ctx)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	x := &examination{p: p, q: q, name: p.cfg.Stream, edit: "nats stream edit " + p.cfg.Stream + " "}
	x.d.Server = "NATS " + nc.ConnectedServerVersion()
	before := time.Now()
	m, err := nc.RequestWithContext(ctx, p.cfg.api()+".STREAM.INFO."+p.cfg.Stream, nil)
	after := time.Now()
	if err != nil {
		return doctor.Diagnosis{}, &outbox.Error{Code: broker.CodeUnavailable, Op: "examine stream " + x.name, Err: err, Hint: "let this user publish to " + p.cfg.api() + ".STREAM.INFO." + x.name}
	}
	if err := json.Unmarshal(m.Data, &x.told); err != nil {
		return doctor.Diagnosis{}, fmt.Errorf("read what the server says of stream %s: %w", x.name, err)
	}
	if e := x.told.Error; e != nil {
		if e.ErrorCode != natsgo.JSErrCodeStreamNotFound {
			return doctor.Diagnosis{}, fmt.Errorf("examine stream %s: %w", x.name, e)
		}
		return doctor.Diagnosis{}, &outbox.Error{
			Code: broker.CodeUnavailable, Op: "examine stream " + x.name, Detail: "it does not exist",
			Hint: "nats stream add " + x.name + " --subjects 'orders.>' --storage file --replicas 3 --discard new --defaults, with the sink's topics as subjects",
		}
	}
	x.takes()
	x.storage()
	x.limits()
	x.interest()
	x.duplicates()
	x.sync(ctx)
	if x.told.Now.IsZero() {
		x.found("clock-skew", doctor.Unknown, "this server does not say its time", "NATS 2.10 and later do", "upgrade the server")
	} else {
		x.d.Add(doctor.Clock("the server", x.told.Now, before, after, 0))
	}
	x.d.Worth = x.worth()
	return x.d, nil
}

// connected waits for the connection.
func (p *Publisher) connected(ctx context.Context) (*natsgo.Conn, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		p.mu.Lock()
		l, closing := p.link, p.closing
		p.mu.Unlock()
		if closing {
			return nil, &outbox.Error{Code: broker.CodeUnavailable, Op: "examine stream " + p.cfg.Stream, Err: errClosed}
		}
		if l.nc.IsConnected() {
			return l.nc, nil
		}
		select {
		case <-ctx.Done():
			e := &outbox.Error{Code: broker.CodeUnavailable, Op: "examine stream " + p.cfg.Stream, Detail: "the server is not reached"}
			if down := (*downError)(nil); errors.As(l.down(p.dial != nil), &down) {
				e.Detail, e.Hint, e.Err = down.what, down.hint, down.cause
			}
			return nil, e
		case <-tick.C:
		}
	}
}

// examination is one run of Examine.
type examination struct {
	p     *Publisher
	q     doctor.Question
	name  string
	edit  string // begins the command that changes the stream
	told  told
	every time.Duration // between two writes to the disk; 0: not known
	syncs bool          // each message is on the disk when it is acknowledged
	d     doctor.Diagnosis
}

func (x *examination) found(check string, s doctor.Severity, read, means, fix string) {
	if s == doctor.OK {
		means, fix = "", ""
	}
	x.d.Add(doctor.Finding{Check: check, Where: "stream " + x.name, Severity: s, Read: read, Means: means, Fix: fix})
}

// takes is whether the stream takes what will come, and whether it says so.
func (x *examination) takes() {
	c := x.told.Config
	switch {
	case c.NoAck:
		x.found("jetstream-ack", doctor.Unsafe, "no_ack = true", "nobody learns what was stored: a relay refuses it", x.edit+"--ack")
	case c.Sealed:
		x.found("jetstream-ack", doctor.Unsafe, "sealed = true", "it takes no messages any more", "name another stream")
	default:
		x.found("jetstream-ack", doctor.OK, "no_ack = false", "", "")
	}
	var missed []string
	for _, r := range x.q.Samples {
		e := broker.Envelope{Record: r}
		subject, err := x.p.wire.Topic(&e)
		if err != nil {
			continue // of one message: it becomes a dead letter, and says why
		}
		if x.p.compare != nil {
			subject, _ = subjectOf(subject, &e)
		}
		if !covers(c.Subjects, subject) {
			missed = append(missed, subject)
		}
	}
	read := fmt.Sprintf("subjects = %s", strings.Join(c.Subjects, ", "))
	switch {
	case len(missed) > 0:
		x.found("jetstream-subjects", doctor.Warning, read+"; not "+strings.Join(missed[:min(3, len(missed))], ", "),
			"messages of these subjects become dead letters: this stream does not take them", x.edit+"--subjects '"+strings.Join(append(c.Subjects, missed[0]), ",")+"'")
	default:
		x.found("jetstream-subjects", doctor.OK, read, "", "")
	}
	if limit := x.p.Capabilities().MaxBytes; limit > 0 {
		x.d.Add(x.q.Payload("jetstream-max-payload", "stream "+x.name, "the least of max_payload and max_msg_size", limit, "raise max_payload in the server's configuration (and --max-msg-size of the stream), or lower topics[].max_payload"))
	}
}

// storage is what the loss of a server takes along.
func (x *examination) storage() {
	c := x.told.Config
	alone := c.Replicas <= 1
	switch {
	case c.Storage == "file":
		x.found("jetstream-storage", doctor.OK, "storage = file", "", "")
	case alone:
		x.found("jetstream-storage", doctor.Unsafe, "storage = "+c.Storage, "a restart of the server loses every message", "make the stream anew with --storage file: a stream's storage cannot be changed")
	default:
		x.found("jetstream-storage", doctor.Warning, "storage = "+c.Storage, "messages are gone when most of its servers end together, as in a power loss", "make the stream anew with --storage file: a stream's storage cannot be changed")
	}
	read := fmt.Sprintf("num_replicas = %d", c.Replicas)
	if alone {
		x.found("jetstream-replicas", doctor.Warning, read, "messages are on one server: while it is away nothing is taken, and what its disk loses is lost", x.edit+"--replicas 3, on a cluster of three servers or more")
	} else {
		x.found("jetstream-replicas", doctor.OK, read, "", "")
	}
	var away []string
	for _, r := range x.told.Cluster.Replicas {
		if r.Offline || !r.Current {
			away = append(away, r.Name)
		}
	}
	if len(away) > 0 {
		x.found("jetstream-replicas-current", doctor.Warning, "replicas that are away or behind: "+strings.Join(away, ", "), "fewer copies are made than the stream asks for", "start these servers, and look at `nats stream cluster info "+x.name+"`")
	} else if !alone {
		x.found("jetstream-replicas-current", doctor.OK, "every replica is current", "", "")
	}
}

// limits are what removes messages that were acknowledged.
func (x *examination) limits() {
	c := x.told.Config
	var limits []string
	for _, l := range []struct {
		name  string
		value int64
	}{{"max_msgs", c.MaxMsgs}, {"max_bytes", c.MaxBytes}} {
		if l.value > 0 {
			limits = append(limits, fmt.Sprintf("%s = %d", l.name, l.value))
		}
	}
	read := fmt.Sprintf("discard = %s", c.Discard)
	switch {
	case len(limits) == 0:
		x.found("jetstream-discard", doctor.OK, read+", without max_msgs and max_bytes", "", "")
	case c.Discard == "new":
		x.found("jetstream-discard", doctor.OK, read+", "+strings.Join(limits, ", "), "", "")
	default:
		x.found("jetstream-discard", doctor.Unsafe, read+", "+strings.Join(limits, ", "), "a full stream removes its oldest messages, whether consumers have read them or not", x.edit+"--discard new")
	}
	if c.MaxMsgsPerSubject > 0 && !c.RefusesPerSubject {
		x.found("jetstream-per-subject", doctor.Warning, fmt.Sprintf("max_msgs_per_subject = %d, discard_new_per_subject = false", c.MaxMsgsPerSubject),
			"older messages of a subject are removed, whether consumers have read them or not", x.edit+"--max-msgs-per-subject=-1")
	}
	if c.MaxAge > 0 {
		x.found("jetstream-max-age", doctor.Note, fmt.Sprintf("max_age = %v", c.MaxAge), "a consumer that is away for longer misses messages", x.edit+"--max-age=-1, if that is not meant")
	}
}

// interest is about messages that nobody waits for.
func (x *examination) interest() {
	c := x.told.Config
	read := fmt.Sprintf("retention = %s, consumers: %d", c.Retention, x.told.State.Consumers)
	if c.Retention == "interest" && x.told.State.Consumers == 0 {
		x.found("jetstream-interest", doctor.Unsafe, read, "a message that no consumer waits for is acknowledged and dropped at once", "make the consumers first: nats consumer add "+x.name+"; or "+x.edit+"--retention limits")
		return
	}
	x.found("jetstream-interest", doctor.OK, read, "", "")
}

// duplicates is for how long a second copy is recognized.
func (x *examination) duplicates() {
	window := x.told.Config.Duplicates
	read := fmt.Sprintf("duplicate_window = %v, and a copy may come %v later", window, x.q.Retry)
	switch {
	case x.p.compare != nil:
		x.found("jetstream-duplicates", doctor.OK, "no_duplicates = compare: the window does not count", "", "")
	case window >= x.q.Retry:
		x.found("jetstream-duplicates", doctor.OK, read, "", "")
	default:
		x.found("jetstream-duplicates", doctor.Warning, read, "a message whose acknowledgement was lost may be stored twice", fmt.Sprintf("%s--dupe-window=%v, or set retry.max lower, or no_duplicates to compare", x.edit, x.q.Retry.Round(time.Second)))
	}
}

// worth is what an acknowledgement survives.
func (x *examination) worth() string {
	c, d := x.told.Config, &x.d
	var text string
	switch {
	case d.Has("jetstream-interest", doctor.Unsafe):
		return "nothing: no consumer is there, so the message is dropped when it is acknowledged"
	case d.Has("jetstream-ack", doctor.Unsafe):
		return "nothing: this stream acknowledges nothing"
	case c.Storage != "file" && c.Replicas <= 1:
		text = "the message is in the memory of one server, until that ends"
	case c.Storage != "file":
		text = fmt.Sprintf("the message is in the memory of %d of %d servers", c.Replicas/2+1, c.Replicas)
	case c.Replicas <= 1 && x.syncs:
		text = "the message is on the disk of one server: it survives a power loss, and not the loss of that disk"
	case c.Replicas <= 1 && x.every > 0:
		text = fmt.Sprintf("the message survives the end of the server's process; a crash of its machine loses up to the last %v", x.every)
	case c.Replicas <= 1:
		text = "the message survives the end of the server's process; what a crash of its machine loses was not to be read"
	case x.syncs:
		text = fmt.Sprintf("the message is on the disks of %d of %d servers", c.Replicas/2+1, c.Replicas)
	default:
		text = fmt.Sprintf("the message is with %d of %d servers: it survives the loss of %d, and may not survive a power loss of all", c.Replicas/2+1, c.Replicas, (c.Replicas-1)/2)
	}
	if d.Has("jetstream-discard", doctor.Unsafe) {
		text += "; and until the stream is full, when the oldest messages go"
	}
	return text
}

package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

var _ doctor.Examiner = (*Publisher)(nil)

// Examine reads the server's settings: whether an entry is on its disk when it is acknowledged, and whether it stays. It has a
// connection of its own for a moment. CONFIG GET is what it needs beside INFO; without it, it says that it could not read
// them.
func (p *Publisher) Examine(ctx context.Context, q doctor.Question) (doctor.Diagnosis, error) {
	d := p.dial
	d.waitAOF = false // a server that does not know WAITAOF is a finding
	l, err := d.open(ctx)
	if err != nil {
		e := &outbox.Error{Code: broker.CodeUnavailable, Op: "examine Redis", Detail: "the server does not answer", Err: err, Hint: hintOf(err)}
		if e.Hint == "" {
			e.Hint = "is the server up, and are address and TLS settings right? Tried: " + d.place
		}
		return doctor.Diagnosis{}, e
	}
	defer l.free()
	defer context.AfterFunc(ctx, l.drop)() // go-redis would wait for a server that says nothing
	x := &examination{p: p, link: l, info: map[string]string{}}
	if err := x.ask(ctx); err != nil {
		return doctor.Diagnosis{}, fmt.Errorf("examine Redis: %w", err)
	}
	x.version()
	x.persistence()
	x.eviction()
	x.replicas()
	if c := p.cfg; c.MaxLen > 0 || c.MaxAge > 0 {
		x.found("redis-trimming", "", doctor.Note, fmt.Sprintf("max_len = %d, max_age = %v", c.MaxLen, c.MaxAge), "entries that were acknowledged are removed, whether consumers have read them or not", "leave redis.max_len and redis.max_age out, if that is not meant")
	}
	if l.limit > 0 && l.limit < usualBulk {
		takes := l.limit // of a field; headers have their own
		if p.wire.Format() == broker.FormatStructured {
			takes = p.wire.MaxPayload(takes)
		}
		x.d.Add(q.Payload("redis-max-payload", "", "proto-max-bulk-len", takes, "redis-cli CONFIG SET proto-max-bulk-len 512mb"))
	}
	if err := x.streams(ctx, q.Samples); err != nil {
		return doctor.Diagnosis{}, fmt.Errorf("examine Redis: %w", err)
	}
	if err := x.clock(ctx); err != nil {
		return doctor.Diagnosis{}, fmt.Errorf("examine Redis: %w", err)
	}
	x.d.Worth = x.worth()
	return x.d, nil
}

// examination is one run of Examine.
type examination struct {
	p        *Publisher
	link     *link
	info     map[string]string // by the server's names
	settings map[string]string // nil: they may not be read
	d        doctor.Diagnosis
}

func (x *examination) found(check, where string, s doctor.Severity, read, means, fix string) {
	if s == doctor.OK {
		means, fix = "", ""
	}
	x.d.Add(doctor.Finding{Check: check, Where: where, Severity: s, Read: read, Means: means, Fix: fix})
}

// ask reads what the server says of itself; what this user may not read stays unknown.
func (x *examination) ask(ctx context.Context) error {
	for _, section := range []string{"server", "persistence", "replication"} {
		text, err := x.link.conn.Info(ctx, section).Result()
		if err != nil && !isReply(err) {
			return err
		}
		for line := range strings.SplitSeq(text, "\n") {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				x.info[name] = value
			}
		}
	}
	for _, name := range []string{"appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory", "maxmemory-policy", "min-replicas-to-write"} {
		values, err := x.link.conn.ConfigGet(ctx, name).Result()
		if err != nil && !isReply(err) {
			return err
		}
		if value, ok := values[name]; ok {
			if x.settings == nil {
				x.settings = map[string]string{}
			}
			x.settings[name] = value
		}
	}
	return nil
}

// knowsWaitAOF reports whether the server is of a version that does.
func (x *examination) knowsWaitAOF() bool {
	return canWaitAOF("redis_version:"+x.info["redis_version"]+"\r\n") == nil
}

func (x *examination) version() {
	version := x.info["redis_version"]
	x.d.Server = strings.TrimSpace("Redis " + version)
	const check = "redis-version"
	switch {
	case version == "":
		x.found(check, "", doctor.Unknown, "the version was not read", "", "let the relay's user run INFO: ACL SETUSER NAME +info")
	case x.p.cfg.WaitAOF && !x.knowsWaitAOF():
		x.found(check, "", doctor.Unsafe, "redis_version = "+version, "redis.wait_aof needs Redis 7.2, which has the command WAITAOF: the sink does not connect", "leave wait_aof out, and: "+configSet("appendfsync", "always"))
	default:
		x.found(check, "", doctor.OK, "redis_version = "+version, "", "")
	}
}

// configSet is the command that changes a setting for good.
func configSet(name, value string) string {
	return "redis-cli CONFIG SET " + name + " " + value + " && redis-cli CONFIG REWRITE"
}

// persistence is what is on the disk when an entry is acknowledged.
func (x *examination) persistence() {
	x.appendOnly()
	if x.aof() == "0" {
		return
	}
	value, known := x.settings["appendfsync"]
	read := "appendfsync = " + value
	const check = "redis-appendfsync"
	fix := configSet("appendfsync", "always")
	if x.knowsWaitAOF() {
		fix += "; or redis.wait_aof: true"
	}
	switch {
	case x.p.cfg.WaitAOF && x.knowsWaitAOF():
		x.found(check, "", doctor.OK, "redis.wait_aof = true: each round waits for the disk", "", "")
	case !known:
		x.found(check, "", doctor.Unknown, "appendfsync was not read", "what a crash of the machine loses is not known", "let the relay's user read it: ACL SETUSER NAME +config|get")
	case value != "always":
		lost := "the last second or two"
		if value == "no" {
			lost = "what the system had not written yet, often 30 seconds"
		}
		x.found(check, "", doctor.Unsafe, read, "a crash of the machine loses "+lost+", which were acknowledged", fix)
	case x.settings["no-appendfsync-on-rewrite"] == "yes":
		x.found(check, "", doctor.Warning, read+", no-appendfsync-on-rewrite = yes", "while the server rewrites its file nothing is forced to the disk: a crash of the machine loses what was acknowledged meanwhile", configSet("no-appendfsync-on-rewrite", "no"))
	default:
		x.found(check, "", doctor.OK, read, "", "")
	}
}

// aof is 1 where the append-only file is on, 0 where it is not, and empty where that is not known.
func (x *examination) aof() string {
	if value, known := x.settings["appendonly"]; known {
		return map[string]string{"yes": "1", "no": "0"}[value]
	}
	return x.info["aof_enabled"]
}

func (x *examination) appendOnly() {
	const check = "redis-appendonly"
	switch x.aof() {
	case "1":
		x.found(check, "", doctor.OK, "appendonly = yes", "", "")
	case "0":
		x.found(check, "", doctor.Unsafe, "appendonly = no", "a crash, or a restart without a snapshot, loses every entry since the last one", configSet("appendonly", "yes")+", and appendfsync always")
	default:
		x.found(check, "", doctor.Unknown, "appendonly was not read", "what a crash loses is not known", "let the relay's user read it: ACL SETUSER NAME +config|get +info")
	}
}

// eviction is what removes streams for want of memory.
func (x *examination) eviction() {
	const check = "redis-eviction"
	policy, known := x.settings["maxmemory-policy"]
	limit := x.settings["maxmemory"]
	read := fmt.Sprintf("maxmemory-policy = %s, maxmemory = %s", policy, limit)
	fix := configSet("maxmemory-policy", "noeviction")
	switch {
	case !known:
		x.found(check, "", doctor.Unknown, "maxmemory-policy was not read", "whether the server removes streams that were acknowledged is not known", "let the relay's user read it: ACL SETUSER NAME +config|get")
	case strings.HasPrefix(policy, "allkeys") && limit != "0":
		x.found(check, "", doctor.Unsafe, read, "a server that is full removes whole streams, acknowledged and not read", fix)
	case strings.HasPrefix(policy, "allkeys"):
		x.found(check, "", doctor.Note, read, "nothing is removed as long as maxmemory is 0; then whole streams are", fix)
	case strings.HasPrefix(policy, "volatile") && x.p.cfg.Fence != "" && limit != "0":
		x.found(check, "", doctor.Warning, read, "a server that is full removes keys that expire: those of redis.fence are, and the fence forgets who the last owner was", fix)
	default:
		x.found(check, "", doctor.OK, read, "", "")
	}
}

// replicas are what a fail-over goes to.
func (x *examination) replicas() {
	const check = "redis-replicas"
	role, replicas := x.info["role"], x.info["connected_slaves"]
	least := x.settings["min-replicas-to-write"]
	read := fmt.Sprintf("role = %s, connected replicas: %s, min-replicas-to-write = %s", role, replicas, least)
	switch {
	case role == "":
		x.found(check, "", doctor.Unknown, "role and replicas were not read", "what a fail-over loses is not known", "let the relay's user run INFO: ACL SETUSER NAME +info")
	case role != "master":
		x.found(check, "", doctor.Unsafe, read, "a replica takes no messages", "name the master in the sink's url")
	case replicas != "0" && (least == "0" || least == ""):
		x.found(check, "", doctor.Note, read, "replicas follow later: a fail-over loses what they had not, and nothing stops a master that they have lost", configSet("min-replicas-to-write", "1"))
	case replicas != "0":
		x.found(check, "", doctor.Note, read, "replicas follow later: a fail-over loses what they had not", "")
	default:
		x.found(check, "", doctor.Note, read, "entries are on this server alone: what its disk loses is lost", "")
	}
}

// streams looks whether the keys that messages go to are streams.
func (x *examination) streams(ctx context.Context, samples []*outbox.Record) error {
	seen := map[string]bool{}
	for _, r := range samples {
		name, err := x.p.wire.Topic(&broker.Envelope{Record: r})
		if err != nil || seen[name] { // of one message: it becomes a dead letter, and says why
			continue
		}
		seen[name] = true
		kind, err := x.link.conn.Type(ctx, name).Result()
		if isReply(err) {
			continue // not this user's to ask
		}
		if err != nil {
			return err
		}
		if kind == "stream" || kind == "none" {
			x.found("redis-stream", "stream "+name, doctor.OK, "type = "+kind, "", "")
		} else {
			x.found("redis-stream", "stream "+name, doctor.Warning, "type = "+kind, "it is no stream: its messages become dead letters", "redis-cli RENAME "+name+" "+name+".old, or another topic_template")
		}
	}
	return nil
}

func (x *examination) clock(ctx context.Context) error {
	before := time.Now()
	said, err := x.link.conn.Time(ctx).Result()
	after := time.Now()
	if isReply(err) {
		x.found("clock-skew", "", doctor.Unknown, "the server's time was not read", "", "let the relay's user run TIME: ACL SETUSER NAME +time")
		return nil
	}
	if err == nil {
		x.d.Add(doctor.Clock("the server", said, before, after, time.Microsecond))
	}
	return err
}

// worth is what an acknowledgement survives.
func (x *examination) worth() string {
	var text string
	value := x.settings["appendfsync"]
	switch {
	case x.d.Has("redis-version", doctor.Unsafe) || x.d.Has("redis-replicas", doctor.Unsafe):
		return "nothing: this server takes no messages"
	case x.aof() == "":
		return "not known: the server's settings could not be read"
	case x.aof() == "0":
		text = "the entry is in the server's memory: a crash loses what came since the last snapshot"
	case x.p.cfg.WaitAOF || value == "always":
		text = "the entry is on the server's disk: it survives a crash and a power loss"
		if n, _ := strconv.Atoi(x.info["connected_slaves"]); n > 0 {
			text += ", and not always a fail-over"
		} else {
			text += ", and not the loss of that disk"
		}
	case value == "":
		text = "the entry survives the end of the server's process; what a crash of its machine loses was not to be read"
	default:
		text = "the entry survives the end of the server's process; a crash of its machine loses the newest ones"
	}
	if x.d.Has("redis-eviction", doctor.Unsafe) {
		text += "; and until the server is full, when whole streams go"
	}
	return text
}

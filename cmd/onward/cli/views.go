package cli

import (
	"encoding/base64"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// The types of this file are the JSON of the command line: a written contract (docs/cli.md). Keys come and stay.

type messageView struct {
	ID             string            `json:"id"`
	Topic          string            `json:"topic"`
	Key            string            `json:"key"`
	Type           string            `json:"type"`
	ContentType    string            `json:"content_type"`
	Scope          string            `json:"scope,omitempty"`
	CorrelationID  string            `json:"correlation_id,omitempty"`
	CausationID    string            `json:"causation_id,omitempty"`
	AggregateType  string            `json:"aggregate_type,omitempty"`
	AggregateID    string            `json:"aggregate_id,omitempty"`
	EventID        string            `json:"event_id,omitempty"`
	Partition      int               `json:"partition"`
	Seq            int64             `json:"seq"`
	KeySeq         int64             `json:"key_seq,omitempty"`
	Txid           uint64            `json:"txid,omitempty"`
	CreatedAt      time.Time         `json:"created_at"`
	AvailableAt    *time.Time        `json:"available_at,omitempty"`
	Headers        map[string]string `json:"headers,omitempty"`
	PayloadBytes   int               `json:"payload_bytes"`
	Payload        *string           `json:"payload,omitempty"`        // where it is text
	PayloadBase64  *string           `json:"payload_base64,omitempty"` // where it is not
	States         []store.SinkState `json:"states,omitempty"`
	*deadViewExtra `json:",omitempty"`
}

// deadViewExtra is what a dead letter has besides.
type deadViewExtra struct {
	Sink         string        `json:"sink"`
	Code         outbox.Code   `json:"code"`
	Error        string        `json:"error"`
	Attempts     int           `json:"attempts"`
	FirstFailure time.Time     `json:"first_failure"`
	LastFailure  time.Time     `json:"last_failure"`
	Relay        string        `json:"relay"`
	Blocks       bool          `json:"blocks"`
	Behind       *int          `json:"behind,omitempty"`
	Tries        []attemptView `json:"tries,omitempty"`
}

type attemptView struct {
	Attempt    int         `json:"attempt"`
	At         time.Time   `json:"at"`
	Relay      string      `json:"relay"`
	Outcome    string      `json:"outcome"`
	Code       outbox.Code `json:"code"`
	Error      string      `json:"error"`
	DurationMS float64     `json:"duration_ms"`
}

// viewRecord shows a record; its payload only where asked, since lists have none.
func viewRecord(r *outbox.Record, size int, withPayload bool) messageView {
	v := messageView{
		ID: r.ID.String(), Topic: r.Topic, Key: r.Key, Type: r.Type, ContentType: r.ContentType, Scope: r.Scope,
		CorrelationID: r.CorrelationID, CausationID: r.CausationID, AggregateType: r.AggregateType, AggregateID: r.AggregateID,
		EventID: r.EventID, Partition: r.Partition, Seq: r.Seq, KeySeq: r.KeySeq, CreatedAt: r.CreatedAt.UTC(),
		AvailableAt: optionalTime(r.AvailableAt), Headers: r.Headers, PayloadBytes: size,
	}
	if withPayload {
		if s := string(r.Payload); utf8.ValidString(s) {
			v.Payload = &s
		} else {
			s := base64.StdEncoding.EncodeToString(r.Payload)
			v.PayloadBase64 = &s
		}
	}
	return v
}

func viewMessage(m *store.MessageInfo, withPayload bool) messageView {
	v := viewRecord(&m.Record, m.PayloadBytes, withPayload)
	v.Txid, v.States = m.Tx, m.States
	for i := range v.States {
		if due := v.States[i].DueAt; due != nil {
			v.States[i].DueAt = optionalTime(*due)
		}
		if after, by := v.States[i].PublishedAfter, v.States[i].PublishedBy; after != nil && by != nil {
			v.States[i].PublishedAfter, v.States[i].PublishedBy = optionalTime(*after), optionalTime(*by)
		}
	}
	return v
}

func viewDead(d *store.DeadInfo, whole bool) messageView {
	v := viewRecord(&d.Record, d.PayloadBytes, whole)
	v.deadViewExtra = &deadViewExtra{
		Sink: d.Sink, Code: d.Code, Error: d.Error, Attempts: d.Attempts, FirstFailure: d.FirstFailure.UTC(),
		LastFailure: d.LastFailure.UTC(), Relay: d.Relay, Blocks: d.Blocks,
	}
	if whole {
		v.Behind = &d.Behind
		for _, t := range d.Tries {
			v.Tries = append(v.Tries, attemptView{
				Attempt: t.No, At: t.At.UTC(), Relay: t.Relay, Outcome: t.Outcome, Code: t.Code, Error: t.Error, DurationMS: millis(t.Took),
			})
		}
	}
	return v
}

type statusView struct {
	Database   string           `json:"database"`
	Schema     int              `json:"schema"`
	Partitions int              `json:"partitions"`
	Lineage    string           `json:"lineage"`
	Now        time.Time        `json:"now"`
	RelaysLive int              `json:"relays_live"`
	Sinks      []sinkStatusView `json:"sinks"`
	// Of the newest UnroutedOf messages, those that no sink takes, by topic. UnroutedOf is left out where a sink takes every topic.
	Unrouted   []store.TopicCount `json:"unrouted,omitempty"`
	UnroutedOf int64              `json:"unrouted_of,omitempty"`
	Reborn     *time.Time         `json:"reborn,omitempty"`  // another life of the server: a crash, a promotion, a restore
	Rebased    *store.Rebased     `json:"rebased,omitempty"` // the rows were another server's, and cursors were set anew
}

type sinkStatusView struct {
	Name            string                 `json:"name"`
	Topics          []outbox.Pattern       `json:"topics,omitempty"` // empty: every topic
	Exclude         []outbox.Pattern       `json:"exclude,omitempty"`
	CreatedAt       time.Time              `json:"created_at"`
	SeenAt          time.Time              `json:"seen_at"`
	Serving         []store.Serving        `json:"serving"`
	Differs         bool                   `json:"settings_differ,omitempty"` // between the relays that serve it
	Backlog         int64                  `json:"backlog"`
	BacklogAtLeast  bool                   `json:"backlog_at_least,omitempty"`
	LagMS           float64                `json:"lag_ms"`
	Parked          map[store.Reason]int64 `json:"parked"`
	BlockedKeys     int64                  `json:"blocked_keys"`
	Pauses          []store.Pause          `json:"pauses,omitempty"`
	Dead            int64                  `json:"dead"`
	CountsAtLeast   bool                   `json:"counts_at_least,omitempty"`
	Published       int64                  `json:"published"`
	Rate            float64                `json:"rate"` // messages a second, since five whole minutes ago
	PartitionsOwned int                    `json:"partitions_owned"`
	PartitionsFree  int                    `json:"partitions_free"`
	LastSettle      *time.Time             `json:"last_settle,omitempty"`
	RetentionHeld   float64                `json:"retention_held_ms,omitempty"` // for so long it has waited for this sink
}

func viewStatus(s *store.Status) statusView {
	v := statusView{
		Database: s.Database, Schema: s.Schema, Partitions: s.Partitions, Lineage: s.Lineage, Now: s.Now.UTC(),
		RelaysLive: s.RelaysLive, Sinks: []sinkStatusView{}, Unrouted: s.Unrouted, UnroutedOf: s.UnroutedOf,
		Reborn: optionalTime(s.Reborn), Rebased: s.Rebased,
	}
	for i := range s.Sinks {
		k := &s.Sinks[i]
		v.Sinks = append(v.Sinks, sinkStatusView{
			Name: k.Name, Topics: k.Topics, Exclude: k.Exclude, CreatedAt: k.CreatedAt.UTC(), SeenAt: k.SeenAt.UTC(),
			Serving: append([]store.Serving{}, k.Serving...), Differs: differs(k), Backlog: k.Backlog, BacklogAtLeast: k.BacklogAtLeast, LagMS: millis(k.Lag), Parked: k.Parked,
			BlockedKeys: k.BlockedKeys, Pauses: k.Pauses, Dead: k.Dead, CountsAtLeast: k.CountsAtLeast, Published: k.Published, Rate: math.Round(k.Rate*1000) / 1000,
			PartitionsOwned: k.PartitionsOwned, PartitionsFree: k.PartitionsFree, LastSettle: optionalTime(k.LastSettle),
			RetentionHeld: millis(k.RetentionHeld),
		})
	}
	return v
}

// differs reports whether the relays that serve a sink do so in different ways.
func differs(k *store.SinkStatus) bool {
	return slices.ContainsFunc(k.Serving, func(s store.Serving) bool { return s.Settings != k.Serving[0].Settings })
}

type partitionView struct {
	Sink      string     `json:"sink"`
	Partition int        `json:"partition"`
	Relay     string     `json:"relay"` // empty: free
	Epoch     int64      `json:"epoch"`
	Seq       int64      `json:"seq"`
	FreedAt   *time.Time `json:"freed_at,omitempty"`
	Parked    int64      `json:"parked"`
}

type relayView struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Host        string    `json:"host"`
	PID         int       `json:"pid"`
	Version     string    `json:"version"`
	Sinks       []string  `json:"sinks"`
	Partitions  int       `json:"partitions"`
	Live        bool      `json:"live"`
	Draining    bool      `json:"draining"`
	StartedAt   time.Time `json:"started_at"`
	HeartbeatAt time.Time `json:"heartbeat_at"`
	LeasedUntil time.Time `json:"leased_until"`
	LeaseMS     float64   `json:"lease_ms"`
}

package postgres

import (
	"context"
	"fmt"
	"testing"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// fill writes n messages of 512 bytes and 1,000 keys in transactions of 10,000.
func (g *rig) fill(n int) {
	g.t.Helper()
	for from := 0; from < n; from += 10_000 {
		g.Exec(g.t, fmt.Sprintf(`INSERT INTO %s (topic, type, partition_key, payload)
			SELECT 'orders', 'OrderPaid', 'key-' || i %% 1000, decode(repeat(md5(i::text), 16), 'hex') || decode(repeat(md5(i::text), 16), 'hex')
			FROM generate_series($1::int, $2::int) i`, g.Table("messages")), from+1, min(from+10_000, n))
	}
	g.Exec(g.t, `VACUUM ANALYZE `+g.Table("messages"))
}

// BenchmarkRead drains a backlog through a session, and by a bare keyset read of the same columns for comparison.
func BenchmarkRead(b *testing.B) {
	const backlog = 200_000
	g := newRig(b, 64)
	g.fill(backlog)
	b.Run("session", func(b *testing.B) {
		for b.Loop() {
			s := g.join(func(r *store.Relay) { r.Name = outbox.NewID().String() })
			n := 0
			for {
				p, err := s.Read(b.Context(), room(s, 2048))
				if err != nil {
					b.Fatal(err)
				}
				for _, part := range p.Parts {
					n += len(part.Records)
				}
				if !p.More {
					break
				}
			}
			if n != backlog {
				b.Fatalf("read %d", n)
			}
			if err := s.store.takeOver(context.Background(), s.member.ID.String(), takeOwn); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(backlog*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			g.bare(b, backlog)
		}
		b.ReportMetric(backlog*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
}

// bare reads all rows by keyset in pages of 2,000, scans them and drops them.
func (g *rig) bare(b *testing.B, want int) {
	b.Helper()
	conn, err := g.Pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	n := 0
	part, seq := -1, int64(0)
	for {
		rows, err := conn.Query(b.Context(), fmt.Sprintf(`SELECT partition_id, seq, id, topic, partition_key, type, payload, content_type, headers::text,
			scope, correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at
			FROM %s WHERE (partition_id, seq) > ($1, $2) ORDER BY partition_id, seq LIMIT 2000`, g.Table("messages")), part, seq)
		if err != nil {
			b.Fatal(err)
		}
		page := 0
		for rows.Next() {
			var r outbox.Record
			var headers string
			var available nullTime
			if err := rows.Scan(&r.Partition, &r.Seq, (*[16]byte)(&r.ID), &r.Topic, &r.Key, &r.Type, &r.Payload, &r.ContentType, &headers, &r.Scope,
				&r.CorrelationID, &r.CausationID, &r.AggregateType, &r.AggregateID, &r.EventID, &r.KeySeq, &r.CreatedAt, &available); err != nil {
				b.Fatal(err)
			}
			part, seq = r.Partition, r.Seq
			page++
		}
		rows.Close()
		if n += page; page == 0 {
			break
		}
	}
	if n != want {
		b.Fatalf("read %d", n)
	}
}

// BenchmarkSelection passes over a backlog for a sink that takes nothing of it, and one of a thousand messages.
func BenchmarkSelection(b *testing.B) {
	const backlog = 200_000
	g := newRig(b, 64)
	g.mixed(backlog, 1000)
	g.Exec(b, `VACUUM ANALYZE `+g.Table("messages"))
	for _, topic := range []string{"nothing", "wanted"} {
		b.Run(topic, func(b *testing.B) {
			for b.Loop() {
				s := g.selecting(outbox.NewID().String(), outbox.Pattern(topic))
				for {
					p, err := s.Read(b.Context(), room(s, 2048))
					if err != nil {
						b.Fatal(err)
					}
					if !p.More {
						break
					}
				}
				if err := s.store.takeOver(context.Background(), s.member.ID.String(), takeOwn); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(backlog*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

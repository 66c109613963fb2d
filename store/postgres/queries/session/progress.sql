kept AS (
    INSERT INTO outbox_progress (sink, relay, no, minute, count, published, snapshot, late_snapshot, late_seq, partitions, seqs, highest, settled_at)
    SELECT e.sink, e.relay, e.no, date_trunc('minute', e.settled_at, 'UTC'), e.published - coalesce(b.published, 0), e.published,
           e.snapshot, e.late_snapshot, e.late_seq, e.partitions, e.seqs, coalesce((SELECT max(q) FROM unnest(e.seqs) q), 0), e.settled_at
    FROM ended e
    LEFT JOIN LATERAL (SELECT p.published, p.partitions, p.seqs FROM outbox_progress p
                       WHERE p.sink = e.sink AND p.relay = e.relay ORDER BY p.no DESC LIMIT 1) b ON true
    -- A relay that stands still leaves no copies.
    WHERE (e.published, e.partitions, e.seqs)
          IS DISTINCT FROM (coalesce(b.published, 0), coalesce(b.partitions, '{}'), coalesce(b.seqs, '{}')))

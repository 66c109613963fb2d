-- Where the message of a receipt stands in the sink $1: $2 id, $3 partition, $4 seq, $5 transaction.
-- The answer names what is known: whether the sink exists, whether the row is in the log or is a copy, the row's state, and
-- for a row that is not there the fate of its transaction. A transaction that this statement's snapshot cannot know
-- (from xmax on) runs, or its number is of another server; pg_xact_status must not be asked about it. Up to the floor the numbers
-- are another server's, so nothing is known.
SELECT EXISTS (SELECT FROM outbox_sinks WHERE name = $1::text),
       EXISTS (SELECT FROM outbox_messages WHERE id = m.id AND seq = m.seq AND partition_id = m.partition_id),
       coalesce(st.state, ''),
       CASE WHEN m.seq <= coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0) THEN ''
            WHEN m.txid < pg_snapshot_xmax(pg_current_snapshot()) THEN coalesce(pg_xact_status(m.txid), '') ELSE 'in progress' END
FROM (SELECT $2::uuid AS id, $3::int AS partition_id, $4::bigint AS seq, $5::text::xid8 AS txid,
             (SELECT l.topic FROM outbox_messages l WHERE l.id = $2 AND l.seq = $4) AS topic) m
LEFT JOIN
--:state
ON true;

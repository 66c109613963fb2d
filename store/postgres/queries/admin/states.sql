-- The states of a page of messages: $2 ids, $3 partitions, $4 seqs, $5 txids, $6 topics.
SELECT m.no - 1, st.sink, st.state, coalesce(st.reason, ''), st.attempts, st.due_at, st.last_code, st.last_error
FROM unnest($2::uuid[], $3::int[], $4::bigint[], $5::text[], $6::text[]) WITH ORDINALITY AS u(id, partition_id, seq, txid, topic, no)
CROSS JOIN LATERAL (SELECT u.no, u.id, u.partition_id, u.seq, u.txid::xid8 AS txid, u.topic) m
CROSS JOIN
--:state
ORDER BY m.no, st.sink;

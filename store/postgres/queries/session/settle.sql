-- Write back how far a relay has got, and which partitions it gives back. Deleting the row that this one replaces is the
-- fence: whoever comes second finds nothing, and then nothing happens here.
--
-- $1 sink, $2 relay, $3 no, $4 token; $5-$10 the new row: snapshot, late snapshot or '', late seq, partitions, seqs,
-- published; $11-$16 partitions with a cursor of their own: partition, snapshot, seq, late snapshot or '', late seq, given back
--:fence
SELECT coalesce((SELECT no FROM new), -1), (SELECT count(*) FROM own);

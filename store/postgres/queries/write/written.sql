-- Where messages were written before. $1: a JSON array of ids.
SELECT w.id::text, w.partition_id, w.seq, w.txid::text
FROM outbox_written(ARRAY(SELECT j.id::uuid FROM json_array_elements_text($1::text::json) AS j(id))) w

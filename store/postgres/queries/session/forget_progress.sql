-- Copies of cursors that are older than $1 microseconds go, with the messages that they tell of. The newest of a relay that runs
-- stays: the next one counts from there. Not in a transaction of retention that may not.
DELETE FROM outbox_progress p
WHERE coalesce(nullif(current_setting('onward.retains', true), ''), 'true') = 'true'
  AND p.settled_at < clock_timestamp() - $1::bigint * interval '1 microsecond'
  AND (EXISTS (SELECT FROM outbox_progress n WHERE n.sink = p.sink AND n.relay = p.relay AND n.no > p.no)
       OR NOT EXISTS (SELECT FROM outbox_cursors c WHERE c.sink = p.sink AND c.relay = p.relay));

-- A settle with verdicts: what settle.sql writes, and what is parked, dead, positioned or gone from the parked rows. All of
-- it only FROM old: a stale owner does nothing. What a message was is copied from the log.
--
-- $1-$16 as settle.sql; $17 the relay's name
-- $18-$24 parked from the log: partition, seq, reason, due in microseconds, attempts, code, error
-- $25-$30 parked again: id, reason, due in microseconds, attempts, code, error
-- $31 parked no more: id
-- $32-$37 dead from the log: partition, seq, blocks, attempts, code, error
-- $38-$42 dead from the parked rows: id, blocks, attempts, code, error
-- $43-$48 failed attempts: id, number, outcome, code, error, duration in microseconds
-- $49-$50 positions: id, position
-- $51 and $52 pauses under which $18 and $25 are parked; 0: none
--:fence
-- A pause that ends meanwhile is found with what it holds; one that has ended holds nothing. Its row must not go before what
-- is parked under it can be seen, so it is locked (outbox_sweep_pauses).
, held AS MATERIALIZED (
    SELECT p.id FROM old, outbox_pauses p
    WHERE p.id = ANY ($51::bigint[] || $52::bigint[]) AND p.sink = $1 AND (p.expires_at IS NULL OR p.expires_at > clock_timestamp())
    FOR KEY SHARE OF p)
, park AS (
    INSERT INTO outbox_parked (sink, place,
--:copied
        , reason, attempts, due_at, pause, first_failure, last_failure, last_code, last_error)
    SELECT $1, m.seq,
--:copy
           , v.reason, v.attempts,
           CASE v.reason WHEN 'retry' THEN clock_timestamp() + v.due * interval '1 microsecond' WHEN 'scheduled' THEN m.available_at
                WHEN 'paused' THEN CASE WHEN h.id IS NULL THEN clock_timestamp() ELSE 'infinity' END END, h.id,
           CASE WHEN v.attempts > 0 THEN clock_timestamp() END, CASE WHEN v.attempts > 0 THEN clock_timestamp() END, v.code, v.error
    FROM old, unnest($18::int[], $19::bigint[], $20::text[], $21::bigint[], $22::int[], $23::text[], $24::text[], $51::bigint[])
         v(part, seq, reason, due, attempts, code, error, pause)
    LEFT JOIN held h ON h.id = v.pause
    CROSS JOIN LATERAL (SELECT * FROM outbox_messages o WHERE o.partition_id = v.part AND o.seq = v.seq LIMIT 1) m
    -- After a crash a message may come from the log again that has its outcome already: it stands.
    WHERE NOT EXISTS (SELECT FROM outbox_dead d WHERE d.id = m.id AND d.sink = $1)
      AND NOT EXISTS (SELECT FROM outbox_audit a WHERE a.message_id = m.id AND a.sink = $1 AND a.action = 'discard')
    ON CONFLICT DO NOTHING
    RETURNING 1)
, again AS (
    UPDATE outbox_parked k SET reason = v.reason, attempts = v.attempts,
           due_at = CASE v.reason WHEN 'retry' THEN clock_timestamp() + v.due * interval '1 microsecond' WHEN 'scheduled' THEN k.available_at
                    WHEN 'paused' THEN CASE WHEN h.id IS NULL THEN clock_timestamp() ELSE 'infinity' END END,
           pause = h.id,
           first_failure = CASE WHEN v.attempts > 0 THEN coalesce(k.first_failure, clock_timestamp()) END,
           last_failure = CASE WHEN v.attempts > k.attempts THEN clock_timestamp() ELSE k.last_failure END,
           last_code = CASE v.reason WHEN 'paused' THEN k.last_code ELSE v.code END,
           last_error = CASE v.reason WHEN 'paused' THEN k.last_error ELSE v.error END
    FROM old, unnest($25::text[], $26::text[], $27::bigint[], $28::int[], $29::text[], $30::text[], $52::bigint[])
         v(id, reason, due, attempts, code, error, pause)
    LEFT JOIN held h ON h.id = v.pause
    WHERE k.sink = $1 AND k.id = v.id::uuid
    RETURNING 1)
, done AS (
    DELETE FROM outbox_parked k USING old, unnest($31::text[]) v(id) WHERE k.sink = $1 AND k.id = v.id::uuid RETURNING 1)
, die AS (
    INSERT INTO outbox_dead (sink, place,
--:copied
        , blocks, code, error, attempts, first_failure, last_failure, relay)
    SELECT $1, m.seq,
--:copy
           , v.blocks, v.code, v.error, v.attempts, clock_timestamp(), clock_timestamp(), $17
    FROM old, unnest($32::int[], $33::bigint[], $34::boolean[], $35::int[], $36::text[], $37::text[]) v(part, seq, blocks, attempts, code, error)
    CROSS JOIN LATERAL (SELECT * FROM outbox_messages o WHERE o.partition_id = v.part AND o.seq = v.seq LIMIT 1) m
    WHERE NOT EXISTS (SELECT FROM outbox_parked k WHERE k.id = m.id AND k.sink = $1)
      AND NOT EXISTS (SELECT FROM outbox_audit a WHERE a.message_id = m.id AND a.sink = $1 AND a.action = 'discard')
    ON CONFLICT DO NOTHING
    RETURNING 1)
, dying AS (
    DELETE FROM outbox_parked k
    USING old, unnest($38::text[], $39::boolean[], $40::int[], $41::text[], $42::text[]) v(id, blocks, attempts, code, error)
    WHERE k.sink = $1 AND k.id = v.id::uuid
    RETURNING k.*, v.blocks, v.code AS dead_code, v.error AS dead_error, v.attempts AS dead_attempts)
, died AS (
    INSERT INTO outbox_dead (sink, place,
--:copied
        , blocks, code, error, attempts, first_failure, last_failure, relay)
    SELECT $1, m.place,
--:copy
           , m.blocks, m.dead_code, m.dead_error, m.dead_attempts, coalesce(m.first_failure, clock_timestamp()), clock_timestamp(), $17
    FROM dying m
    ON CONFLICT DO NOTHING
    RETURNING 1)
, tried AS (
    INSERT INTO outbox_attempts (sink, id, attempt, relay, outcome, code, error, duration)
    SELECT $1, v.id::uuid, v.attempt, $17, v.outcome, v.code, v.error, v.took * interval '1 microsecond'
    FROM old, unnest($43::text[], $44::int[], $45::text[], $46::text[], $47::text[], $48::bigint[]) v(id, attempt, outcome, code, error, took)
    ON CONFLICT DO NOTHING
    RETURNING 1)
, placed AS (
    INSERT INTO outbox_positions (sink, id, position)
    SELECT $1, v.id::uuid, v.position FROM old, unnest($49::text[], $50::text[]) v(id, position)
    ON CONFLICT DO NOTHING
    RETURNING 1)
SELECT coalesce((SELECT no FROM new), -1), (SELECT count(*) FROM own),
       (SELECT count(*) FROM again) + (SELECT count(*) FROM done) + (SELECT count(*) FROM dying);

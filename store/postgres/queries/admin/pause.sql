-- Pauses $2 $3 of the sink $1; $4 why, $5 for so many microseconds, or $6 until then, $7 who.
SELECT outbox_pause($1::text, $2::text, $3::text, $4::text,
                    CASE WHEN $5::bigint > 0 THEN clock_timestamp() + $5 * interval '1 microsecond' ELSE $6::timestamptz END, $7::text);

-- One message: a value for each column, scalars and casts that every driver and protocol knows how to send.
    SELECT 1 AS n, $1::text::uuid AS id, $2::text AS topic, $3::text AS partition_key, $4::text AS type, $5::bytea AS payload,
           $6::text AS content_type, $7::text::jsonb AS headers, $8::text AS scope, $9::text AS correlation_id,
           $10::text AS causation_id, $11::text AS aggregate_type, $12::text AS aggregate_id, $13::text AS event_id,
           nullif($14::text, '')::timestamptz AS available_at, $15::boolean AS serialize

-- Many messages: an array for each column.
    SELECT u.n, u.id::uuid AS id, u.topic, u.partition_key, u.type, u.payload, u.content_type, u.headers::jsonb AS headers, u.scope,
           u.correlation_id, u.causation_id, u.aggregate_type, u.aggregate_id, u.event_id,
           nullif(u.available_at, '')::timestamptz AS available_at, u.serialize
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[], $9::text[],
                $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::boolean[]) WITH ORDINALITY
         AS u(id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id,
              causation_id, aggregate_type, aggregate_id, event_id, available_at, serialize, n)

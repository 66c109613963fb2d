-- Many messages: one JSON text, because arrays are not every driver's matter. Payloads are in base64.
    SELECT j.n, j.id, j.topic, j.partition_key, j.type, decode(j.payload, 'base64') AS payload, j.content_type, j.headers, j.scope,
           j.correlation_id, j.causation_id, j.aggregate_type, j.aggregate_id, j.event_id, j.available_at, j.serialize
    FROM json_to_recordset($1::text::json)
         AS j(n int, id uuid, topic text, partition_key text, type text, payload text, content_type text, headers jsonb, scope text,
              correlation_id text, causation_id text, aggregate_type text, aggregate_id text, event_id text,
              available_at timestamptz, serialize boolean)

       NULL::int, NULL::bigint, NULL::uuid, NULL::text, NULL::text, NULL::text, NULL::bytea, NULL::text, NULL::text, NULL::text,
       NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::timestamptz, NULL::timestamptz

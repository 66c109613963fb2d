-- Who looks after retention: the oldest of the live relays ($1; empty: whoever asks), under the token that its memory was built
-- under ($2; empty: the one last known, so that a copy from another server was looked at first), while no sink is being registered and nobody else is at it. The statements that follow in this
-- transaction read the answer: each has a snapshot of its own, taken under this lock.
SELECT w.leads, set_config('onward.retains', CASE WHEN w.leads
           THEN pg_try_advisory_xact_lock(hashtext('outbox_sinks'::regclass::oid || ' retention'), -1)::text ELSE 'false' END, true) = 'true'
FROM (SELECT EXISTS (SELECT FROM outbox_incarnation t JOIN outbox_meta i ON i.name = 'incarnation' AND i.value = t.token::text
                     WHERE $2::text = '' OR i.value = $2)
             AND ($1::text = '' OR $1 = (SELECT id::text FROM outbox_relays
                                         WHERE NOT draining AND leased_until > clock_timestamp() ORDER BY id LIMIT 1)) AS leads) w;

-- m has its outcome already: it is parked, dead or discarded. The snapshot of a row of cursors may stand before a late row that
-- is settled, while another partition's is not; after a crash the first read finds it again.
(SELECT true FROM outbox_parked k WHERE k.id = m.id AND k.sink = $1 ORDER BY k.id, k.sink LIMIT 1) IS NOT NULL
OR (SELECT true FROM outbox_dead d WHERE d.sink = $1 AND d.id = m.id ORDER BY d.sink, d.id LIMIT 1) IS NOT NULL
OR (SELECT true FROM outbox_audit a WHERE a.message_id = m.id AND a.sink = $1 AND a.action = 'discard' ORDER BY a.message_id LIMIT 1) IS NOT NULL

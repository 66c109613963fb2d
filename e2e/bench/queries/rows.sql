-- The outbox of the alternatives: a table of rows with a state, or whose rows are deleted. $1 messages, $2 keys, $3 payload
CREATE TABLE rows (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, published boolean NOT NULL DEFAULT false, payload bytea NOT NULL)
WITH (autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX rows_waiting ON rows (seq) WHERE NOT published;
CREATE INDEX rows_of_key ON rows (key, seq) WHERE NOT published;

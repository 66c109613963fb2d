-- The names of the registered sinks.
SELECT name FROM outbox_sinks ORDER BY name;

-- Removes every sink, as `onward sinks remove` does.
SELECT outbox_remove_sink(name, 'benchmark') FROM outbox_sinks;

-- A paused sandbox is active, and its lifetime runs on.
INSERT INTO active_states VALUES ('paused');
DROP INDEX sandboxes_by_expiry;
CREATE INDEX sandboxes_by_expiry ON sandboxes (expires_at) WHERE state IN ('creating', 'running', 'paused');

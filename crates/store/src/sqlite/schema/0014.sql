-- Time without use after which a sandbox is paused.
ALTER TABLE templates ADD COLUMN auto_pause_ms BIGINT;
ALTER TABLE sandboxes ADD COLUMN auto_pause_ms BIGINT;
CREATE INDEX sandboxes_with_auto_pause ON sandboxes (id) WHERE auto_pause_ms IS NOT NULL AND state = 'running';

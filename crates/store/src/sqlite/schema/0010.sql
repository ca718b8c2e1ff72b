-- The policies on connections out of a sandbox, as JSON; NULL for no connections.
ALTER TABLE sandboxes ADD COLUMN egress TEXT;
CREATE INDEX sandboxes_with_egress ON sandboxes (worker_id) WHERE state = 'running' AND egress IS NOT NULL;
ALTER TABLE templates ADD COLUMN egress TEXT;

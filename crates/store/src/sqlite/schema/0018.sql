-- Bytes that the box has exchanged with hosts, for a bound on them that outlives the server.
ALTER TABLE sandboxes ADD COLUMN egress_bytes INTEGER NOT NULL DEFAULT 0;

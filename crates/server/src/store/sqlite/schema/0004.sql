CREATE TABLE workers (
    id TEXT NOT NULL PRIMARY KEY,
    hostname TEXT NOT NULL,
    status TEXT NOT NULL,
    providers TEXT NOT NULL,
    capabilities TEXT NOT NULL,
    max_sandboxes BIGINT NOT NULL,
    max_sandboxes_per_owner BIGINT NOT NULL,
    last_heartbeat BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    -- Whether it was said to be stale, so that it is said once.
    found_stale BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE leases (
    resource_id TEXT NOT NULL PRIMARY KEY,
    holder_id TEXT NOT NULL,
    generation BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
) WITHOUT ROWID;
CREATE INDEX leases_by_holder ON leases (holder_id, expires_at);
CREATE INDEX leases_by_expiry ON leases (expires_at);

-- What earlier releases made runs here; the renewal finds these over.
INSERT INTO leases SELECT id, worker_id, 1, 0 FROM sandboxes WHERE state IN ('creating', 'running', 'destroying');

-- Ids are never used again, so that giving a lease back can forget its generation.
CREATE TRIGGER leases_released AFTER UPDATE OF state ON sandboxes WHEN NEW.state IN ('destroyed', 'failed') BEGIN
    DELETE FROM leases WHERE resource_id = NEW.id;
END;

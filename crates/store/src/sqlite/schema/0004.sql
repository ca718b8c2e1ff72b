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

-- How many active sandboxes of which owner each worker runs, beside `counts`.
CREATE TABLE worker_owners (
    worker_id TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    rows BIGINT NOT NULL,
    PRIMARY KEY (worker_id, owner_id)
) WITHOUT ROWID;
INSERT INTO worker_owners SELECT worker_id, owner_id, COUNT(*) FROM sandboxes
    WHERE state IN active_states AND owner_id IS NOT NULL GROUP BY worker_id, owner_id;

CREATE TRIGGER worker_owners_inserted AFTER INSERT ON sandboxes
    WHEN NEW.state IN active_states AND NEW.owner_id IS NOT NULL BEGIN
    INSERT INTO worker_owners VALUES (NEW.worker_id, NEW.owner_id, 1) ON CONFLICT DO UPDATE SET rows = rows + 1;
END;
CREATE TRIGGER worker_owners_ended AFTER UPDATE OF state ON sandboxes
    WHEN OLD.state IN active_states AND NEW.state NOT IN active_states AND OLD.owner_id IS NOT NULL BEGIN
    UPDATE worker_owners SET rows = rows - 1 WHERE worker_id = OLD.worker_id AND owner_id = OLD.owner_id;
    DELETE FROM worker_owners WHERE worker_id = OLD.worker_id AND owner_id = OLD.owner_id AND rows = 0;
END;

-- What this server knows as a worker of the sandboxes that a control plane put
-- here: the highest generation that it was shown, and when its own right to run
-- them ends.
CREATE TABLE held (
    sandbox_id TEXT NOT NULL PRIMARY KEY,
    generation BIGINT NOT NULL,
    lease_until BIGINT
) WITHOUT ROWID;
CREATE TRIGGER held_forgotten AFTER DELETE ON sandboxes BEGIN
    DELETE FROM held WHERE sandbox_id = OLD.id;
END;

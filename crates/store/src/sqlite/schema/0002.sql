-- How many rows there are of what, kept by the triggers below in the very
-- transaction that changes a row, so that no decision has to count.
CREATE TABLE counts (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    rows BIGINT NOT NULL,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;

-- The states of `State::is_active`, for the triggers.
CREATE TABLE active_states (state TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID;
INSERT INTO active_states VALUES ('creating'), ('running'), ('destroying');

INSERT INTO counts SELECT 'state', state, COUNT(*) FROM sandboxes GROUP BY state;
INSERT INTO counts SELECT 'active', '', COUNT(*) FROM sandboxes WHERE state IN active_states;
INSERT INTO counts SELECT 'provider', provider, COUNT(*) FROM sandboxes WHERE state IN active_states GROUP BY provider;
INSERT INTO counts SELECT 'worker', worker_id, COUNT(*) FROM sandboxes WHERE state IN active_states GROUP BY worker_id;
INSERT INTO counts SELECT 'owner', owner_id, COUNT(*) FROM sandboxes
    WHERE state IN active_states AND owner_id IS NOT NULL GROUP BY owner_id;

CREATE TRIGGER sandboxes_inserted AFTER INSERT ON sandboxes BEGIN
    INSERT INTO counts VALUES ('state', NEW.state, 1) ON CONFLICT DO UPDATE SET rows = rows + 1;
END;
CREATE TRIGGER sandboxes_inserted_active AFTER INSERT ON sandboxes WHEN NEW.state IN active_states BEGIN
    INSERT INTO counts VALUES ('active', '', 1), ('provider', NEW.provider, 1), ('worker', NEW.worker_id, 1)
        ON CONFLICT DO UPDATE SET rows = rows + 1;
    INSERT INTO counts SELECT 'owner', NEW.owner_id, 1 WHERE NEW.owner_id IS NOT NULL
        ON CONFLICT DO UPDATE SET rows = rows + 1;
END;
CREATE TRIGGER sandboxes_moved AFTER UPDATE OF state ON sandboxes WHEN OLD.state <> NEW.state BEGIN
    UPDATE counts SET rows = rows - 1 WHERE scope = 'state' AND name = OLD.state;
    INSERT INTO counts VALUES ('state', NEW.state, 1) ON CONFLICT DO UPDATE SET rows = rows + 1;
END;
CREATE TRIGGER sandboxes_ended AFTER UPDATE OF state ON sandboxes
    WHEN OLD.state IN active_states AND NEW.state NOT IN active_states BEGIN
    UPDATE counts SET rows = rows - 1
        WHERE (scope, name) IN (VALUES ('active', ''), ('provider', OLD.provider), ('worker', OLD.worker_id),
                                       ('owner', OLD.owner_id));
    -- There are as many owners as callers like to name.
    DELETE FROM counts WHERE scope = 'owner' AND name = OLD.owner_id AND rows = 0;
END;
-- Only rows of what has ended are ever deleted.
CREATE TRIGGER sandboxes_forgotten AFTER DELETE ON sandboxes BEGIN
    UPDATE counts SET rows = rows - 1 WHERE scope = 'state' AND name = OLD.state;
    DELETE FROM idempotency_keys WHERE sandbox_id = OLD.id;
END;

CREATE INDEX sandboxes_by_owner ON sandboxes (owner_id, created_at) WHERE state <> 'destroyed';
DROP INDEX sandboxes_active_by_owner;

CREATE TABLE quotas (
    owner_id TEXT NOT NULL PRIMARY KEY,
    max_sandboxes BIGINT NOT NULL,
    max_ttl_ms BIGINT NOT NULL,
    max_exec_timeout_ms BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

-- `owner_id` is empty for nobody in particular.
CREATE TABLE idempotency_keys (
    owner_id TEXT NOT NULL,
    key TEXT NOT NULL,
    request TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (owner_id, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_sandbox ON idempotency_keys (sandbox_id);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

CREATE TABLE store (id TEXT NOT NULL);

CREATE TABLE sandboxes (
    id TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL,
    provider TEXT NOT NULL,
    image TEXT NOT NULL,
    memory_mb BIGINT NOT NULL,
    vcpus BIGINT NOT NULL,
    disk_mb BIGINT NOT NULL,
    pids BIGINT NOT NULL,
    metadata TEXT NOT NULL,
    owner_id TEXT,
    worker_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT,
    error TEXT,
    stop_reason TEXT
);
CREATE INDEX sandboxes_by_state ON sandboxes (state, created_at);
CREATE INDEX sandboxes_by_expiry ON sandboxes (expires_at) WHERE state IN ('creating', 'running');
CREATE INDEX sandboxes_active_by_owner ON sandboxes (owner_id, state)
    WHERE state IN ('creating', 'running', 'destroying');
CREATE INDEX sandboxes_by_age ON sandboxes (created_at) WHERE state <> 'destroyed';
CREATE INDEX sandboxes_by_end ON sandboxes (ended_at) WHERE state IN ('destroyed', 'failed');

CREATE TABLE templates (
    name TEXT NOT NULL PRIMARY KEY,
    image TEXT,
    provider TEXT,
    memory_mb BIGINT,
    vcpus BIGINT,
    disk_mb BIGINT,
    ttl_ms BIGINT,
    metadata TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

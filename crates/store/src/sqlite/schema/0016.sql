-- Snapshots of sandboxes. A temporary one is made for a fork, and removed when the fork has ended.
CREATE TABLE snapshots (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT,
    owner_id TEXT,
    sandbox_id TEXT NOT NULL,
    provider TEXT NOT NULL,
    image TEXT NOT NULL,
    memory_mb BIGINT NOT NULL,
    vcpus BIGINT NOT NULL,
    disk_mb BIGINT NOT NULL,
    pids BIGINT NOT NULL,
    state TEXT NOT NULL,
    temporary BIGINT NOT NULL,
    has_memory BIGINT NOT NULL DEFAULT 0,
    size_bytes BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL
);
CREATE INDEX snapshots_newest ON snapshots (created_at, id) WHERE state = 'ready';
CREATE INDEX snapshots_unfinished ON snapshots (id) WHERE state != 'ready';

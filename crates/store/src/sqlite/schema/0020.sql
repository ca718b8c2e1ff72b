-- Keys of owners: the hash of the key, never the key.
CREATE TABLE keys (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT,
    owner_id TEXT NOT NULL,
    scopes TEXT NOT NULL,
    hash BLOB NOT NULL UNIQUE,
    prefix TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    last_used_at BIGINT
);
-- A template may have an owner, and its name is unique among that owner's. The operator's have the owner ''.
CREATE TABLE owned_templates (
    name TEXT NOT NULL,
    owner_id TEXT NOT NULL DEFAULT '',
    image TEXT,
    provider TEXT,
    memory_mb BIGINT,
    vcpus BIGINT,
    disk_mb BIGINT,
    pids INTEGER,
    entrypoint INTEGER CHECK (entrypoint IN (0, 1)),
    ttl_ms BIGINT,
    metadata TEXT NOT NULL,
    egress TEXT,
    auto_pause_ms BIGINT,
    prepare TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (name, owner_id)
);
INSERT INTO owned_templates (name, image, provider, memory_mb, vcpus, disk_mb, pids, entrypoint, ttl_ms, metadata,
    egress, auto_pause_ms, prepare, created_at, updated_at)
    SELECT name, image, provider, memory_mb, vcpus, disk_mb, pids, entrypoint, ttl_ms, metadata, egress,
        auto_pause_ms, prepare, created_at, updated_at FROM templates;
DROP TABLE templates;
ALTER TABLE owned_templates RENAME TO templates;
CREATE INDEX templates_by_owner ON templates (owner_id, name);

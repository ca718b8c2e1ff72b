CREATE TABLE pool_hosts (
    id TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL,
    provider TEXT NOT NULL,
    image TEXT NOT NULL,
    memory_mb BIGINT NOT NULL,
    vcpus BIGINT NOT NULL,
    disk_mb BIGINT NOT NULL,
    pids BIGINT NOT NULL,
    places BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE TABLE pool_slots (
    id TEXT NOT NULL PRIMARY KEY,
    host_id TEXT NOT NULL REFERENCES pool_hosts (id)
);
CREATE INDEX pool_slots_by_host ON pool_slots (host_id);

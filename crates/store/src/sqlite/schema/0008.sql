-- The largest size of one sandbox of the owner; 0 inherits.
ALTER TABLE quotas ADD COLUMN max_memory_mb BIGINT NOT NULL DEFAULT 0;
ALTER TABLE quotas ADD COLUMN max_vcpus BIGINT NOT NULL DEFAULT 0;
ALTER TABLE quotas ADD COLUMN max_disk_mb BIGINT NOT NULL DEFAULT 0;

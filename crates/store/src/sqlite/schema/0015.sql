-- What a row here is made of is stored by one statement: a sandbox, its first lease, and the key of its
-- request. A statement is a round trip to its connection, which every spawn waits for.
CREATE VIEW admissions AS SELECT
    id, state, provider, image, memory_mb, vcpus, disk_mb, pids, metadata, owner_id, worker_id, created_at,
    expires_at, egress, auto_pause_ms, 0 AS generation, 0 AS lease_until, NULL AS key, NULL AS request
    FROM sandboxes;
CREATE TRIGGER admissions_inserted INSTEAD OF INSERT ON admissions BEGIN
    INSERT INTO sandboxes (id, state, provider, image, memory_mb, vcpus, disk_mb, pids, metadata, owner_id,
                           worker_id, created_at, expires_at, egress, auto_pause_ms)
        VALUES (NEW.id, NEW.state, NEW.provider, NEW.image, NEW.memory_mb, NEW.vcpus, NEW.disk_mb, NEW.pids,
                NEW.metadata, NEW.owner_id, NEW.worker_id, NEW.created_at, NEW.expires_at, NEW.egress,
                NEW.auto_pause_ms);
    REPLACE INTO leases (resource_id, holder_id, generation, expires_at)
        VALUES (NEW.id, NEW.worker_id, NEW.generation, NEW.lease_until);
    REPLACE INTO idempotency_keys (owner_id, key, request, sandbox_id, created_at)
        SELECT COALESCE(NEW.owner_id, ''), NEW.key, NEW.request, NEW.id, NEW.created_at WHERE NEW.key IS NOT NULL;
END;

-- Rules that a front agreed with the caller of a sandbox: its end, its ports. The environment of its processes may be
-- large, and is the last column, which a reader of the others does not reach.
ALTER TABLE sandboxes ADD COLUMN terms TEXT;
ALTER TABLE sandboxes ADD COLUMN env TEXT;

DROP VIEW admissions;
CREATE VIEW admissions AS SELECT
    id, state, provider, image, memory_mb, vcpus, disk_mb, pids, metadata, owner_id, worker_id, created_at,
    expires_at, egress, auto_pause_ms, terms, env, 0 AS generation, 0 AS lease_until, NULL AS key, NULL AS request,
    -- Of what is older, keys are free and workers silent.
    0 AS keys_since, 0 AS beats_since,
    -- Caps of all sandboxes, and of those of an owner without a quota.
    0 AS cap, 0 AS owner_cap
    FROM sandboxes;
CREATE TRIGGER admissions_inserted INSTEAD OF INSERT ON admissions WHEN EXISTS (
    SELECT 1 FROM workers
    WHERE id = NEW.worker_id AND status = 'online' AND unreached = 0 AND last_heartbeat > NEW.beats_since
    AND EXISTS (SELECT 1 FROM json_each(providers) WHERE value = NEW.provider)
    AND (max_sandboxes = 0 OR max_sandboxes >
        COALESCE((SELECT rows FROM counts WHERE scope = 'worker' AND name = NEW.worker_id), 0))
    AND (NEW.cap = 0 OR NEW.cap > COALESCE((SELECT rows FROM counts WHERE scope = 'active' AND name = ''), 0))
    AND (NEW.owner_id IS NULL
        OR COALESCE((SELECT CASE max_sandboxes WHEN 0 THEN NEW.owner_cap ELSE max_sandboxes END
            FROM quotas WHERE owner_id = NEW.owner_id), NEW.owner_cap)
        NOT BETWEEN 1 AND COALESCE((SELECT rows FROM counts WHERE scope = 'owner' AND name = NEW.owner_id), 0))
    AND (NEW.key IS NULL OR NOT EXISTS (SELECT 1 FROM idempotency_keys
        WHERE owner_id = COALESCE(NEW.owner_id, '') AND key = NEW.key AND created_at > NEW.keys_since))
) BEGIN
    INSERT INTO sandboxes (id, state, provider, image, memory_mb, vcpus, disk_mb, pids, metadata, owner_id,
                           worker_id, created_at, expires_at, egress, auto_pause_ms, terms, env)
        VALUES (NEW.id, NEW.state, NEW.provider, NEW.image, NEW.memory_mb, NEW.vcpus, NEW.disk_mb, NEW.pids,
                NEW.metadata, NEW.owner_id, NEW.worker_id, NEW.created_at, NEW.expires_at, NEW.egress,
                NEW.auto_pause_ms, NEW.terms, NEW.env);
    REPLACE INTO leases (resource_id, holder_id, generation, expires_at)
        VALUES (NEW.id, NEW.worker_id, NEW.generation, NEW.lease_until);
    REPLACE INTO idempotency_keys (owner_id, key, request, sandbox_id, created_at)
        SELECT COALESCE(NEW.owner_id, ''), NEW.key, NEW.request, NEW.id, NEW.created_at WHERE NEW.key IS NOT NULL;
END;

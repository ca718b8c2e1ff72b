-- Whether a sandbox was placed on it in vain since its last heartbeat.
ALTER TABLE workers ADD COLUMN unreached BIGINT NOT NULL DEFAULT 0;

-- A sandbox whose worker was never asked for it goes to another.
CREATE TRIGGER sandboxes_placed_anew AFTER UPDATE OF worker_id ON sandboxes
    WHEN OLD.worker_id <> NEW.worker_id AND NEW.state IN active_states BEGIN
    UPDATE counts SET rows = rows - 1 WHERE scope = 'worker' AND name = OLD.worker_id;
    INSERT INTO counts VALUES ('worker', NEW.worker_id, 1) ON CONFLICT DO UPDATE SET rows = rows + 1;
END;
CREATE TRIGGER worker_owners_placed_anew AFTER UPDATE OF worker_id ON sandboxes
    WHEN OLD.worker_id <> NEW.worker_id AND NEW.state IN active_states AND NEW.owner_id IS NOT NULL BEGIN
    UPDATE worker_owners SET rows = rows - 1 WHERE worker_id = OLD.worker_id AND owner_id = OLD.owner_id;
    DELETE FROM worker_owners WHERE worker_id = OLD.worker_id AND owner_id = OLD.owner_id AND rows = 0;
    INSERT INTO worker_owners VALUES (NEW.worker_id, NEW.owner_id, 1) ON CONFLICT DO UPDATE SET rows = rows + 1;
END;

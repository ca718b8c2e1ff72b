-- How many rows of what has ended there are of each owner, `''` for those of none,
-- kept in the very transaction that changes a row, so that the owner with the most
-- is found without counting.
CREATE TABLE ended (
    state TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    rows BIGINT NOT NULL,
    PRIMARY KEY (state, owner_id)
) WITHOUT ROWID;
CREATE INDEX ended_by_rows ON ended (state, rows);
INSERT INTO ended SELECT state, COALESCE(owner_id, ''), COUNT(*) FROM sandboxes
    WHERE state IN ('destroyed', 'failed') GROUP BY 1, 2;

DROP INDEX sandboxes_by_end;
CREATE INDEX sandboxes_by_end ON sandboxes (state, ended_at) WHERE state IN ('destroyed', 'failed');
CREATE INDEX sandboxes_ended_by_owner ON sandboxes (state, owner_id, ended_at) WHERE state IN ('destroyed', 'failed');

CREATE TRIGGER ended_came AFTER UPDATE OF state ON sandboxes
    WHEN OLD.state <> NEW.state AND NEW.state IN ('destroyed', 'failed') BEGIN
    INSERT INTO ended VALUES (NEW.state, COALESCE(NEW.owner_id, ''), 1) ON CONFLICT DO UPDATE SET rows = rows + 1;
END;
CREATE TRIGGER ended_went AFTER UPDATE OF state ON sandboxes
    WHEN OLD.state <> NEW.state AND OLD.state IN ('destroyed', 'failed') BEGIN
    UPDATE ended SET rows = rows - 1 WHERE state = OLD.state AND owner_id = COALESCE(OLD.owner_id, '');
    DELETE FROM ended WHERE state = OLD.state AND owner_id = COALESCE(OLD.owner_id, '') AND rows = 0;
END;
CREATE TRIGGER ended_forgotten AFTER DELETE ON sandboxes BEGIN
    UPDATE ended SET rows = rows - 1 WHERE state = OLD.state AND owner_id = COALESCE(OLD.owner_id, '');
    DELETE FROM ended WHERE state = OLD.state AND owner_id = COALESCE(OLD.owner_id, '') AND rows = 0;
END;

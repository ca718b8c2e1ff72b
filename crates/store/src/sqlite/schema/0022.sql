-- What a build gave a template, as JSON: its snapshot, and the defaults of its processes. The snapshot goes with the
-- last template that starts from it.
ALTER TABLE templates ADD COLUMN built TEXT;
ALTER TABLE snapshots ADD COLUMN of_template INTEGER NOT NULL DEFAULT 0;

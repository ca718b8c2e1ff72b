-- A template may name the most processes and threads of a sandbox.
ALTER TABLE templates ADD COLUMN pids INTEGER;

-- Commands that run before a sandbox counts as running, as JSON.
ALTER TABLE templates ADD COLUMN prepare TEXT;

CREATE TABLE counters (
    name TEXT NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
);

-- AUTOINCREMENT: an id that was pruned never comes again, so that a page that
-- begins after it stays where it was.
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    status BIGINT NOT NULL,
    duration_ms BIGINT NOT NULL,
    request_id TEXT NOT NULL,
    remote_addr TEXT,
    user_agent TEXT,
    detail TEXT
);
CREATE INDEX audit_by_time ON audit (created_at);
CREATE INDEX audit_by_actor ON audit (actor);
CREATE INDEX audit_by_action ON audit (action);
CREATE INDEX audit_by_method ON audit (method);
CREATE INDEX audit_by_status ON audit (status);

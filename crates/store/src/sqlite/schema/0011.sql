-- Values that are sent to hosts in the place of sandboxes, sealed; `binding` is JSON.
CREATE TABLE secrets (
    name TEXT NOT NULL PRIMARY KEY,
    binding TEXT NOT NULL,
    sealed BLOB NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
-- The sealed key of the authority that the box trusts.
ALTER TABLE sandboxes ADD COLUMN authority BLOB;

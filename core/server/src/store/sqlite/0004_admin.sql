-- What an operator manages: the admin key, the plaintext of a client key from before its rotation, and the ways from a
-- client key to its session keys and from a state to its sessions.

CREATE TABLE admin_keys (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    display_prefix TEXT NOT NULL,
    hash TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
);

ALTER TABLE client_keys ADD COLUMN previous_hash TEXT;
ALTER TABLE client_keys ADD COLUMN previous_until INTEGER;
CREATE INDEX client_keys_by_previous_hash ON client_keys (previous_hash) WHERE previous_hash IS NOT NULL;

CREATE INDEX session_keys_by_client ON session_keys (client_key_id);
CREATE INDEX sessions_by_state ON sessions (state);

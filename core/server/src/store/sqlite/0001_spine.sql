-- Times are milliseconds since the Unix epoch; lists and payloads are JSON as text.

CREATE TABLE profiles (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    primary_provider TEXT NOT NULL,
    fallback_providers TEXT NOT NULL,
    mcp_servers TEXT NOT NULL,
    allowed_tools TEXT NOT NULL,
    available_sandboxes TEXT NOT NULL,
    deleted INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);

CREATE TABLE client_keys (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    display_prefix TEXT NOT NULL,
    hash TEXT NOT NULL,
    profile_id TEXT NOT NULL REFERENCES profiles (id),
    created_at INTEGER NOT NULL,
    last_used_at INTEGER,
    revoked_at INTEGER
);
CREATE INDEX client_keys_by_hash ON client_keys (hash);

CREATE TABLE sessions (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    profile_id TEXT NOT NULL,
    creator TEXT NOT NULL,
    client_version TEXT,
    settings TEXT,
    state TEXT NOT NULL CHECK (state IN ('open', 'closed', 'error')),
    created_at INTEGER NOT NULL,
    closed_at INTEGER
);

CREATE TABLE session_keys (
    number INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (number),
    hash TEXT NOT NULL,
    client_key_id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    last_used_at INTEGER,
    revoked_at INTEGER
);
CREATE INDEX session_keys_by_hash ON session_keys (session, hash);

CREATE TABLE participants (
    session INTEGER NOT NULL REFERENCES sessions (number),
    client_key_id TEXT NOT NULL,
    tools TEXT NOT NULL,
    sandbox_tools TEXT NOT NULL,
    subagent_tools TEXT NOT NULL,
    PRIMARY KEY (session, client_key_id)
) WITHOUT ROWID;

CREATE TABLE drivers (
    session INTEGER NOT NULL REFERENCES sessions (number),
    client_key_id TEXT NOT NULL,
    PRIMARY KEY (session, client_key_id)
) WITHOUT ROWID;

-- A gate that was never claimed has no row. `pause_*` are there while a paused turn is in it.
CREATE TABLE gates (
    session INTEGER PRIMARY KEY REFERENCES sessions (number),
    epoch INTEGER NOT NULL,
    owner TEXT,
    held INTEGER NOT NULL,
    pause_deadline INTEGER,
    pause_expected TEXT,
    pause_stashed TEXT,
    pause_progress TEXT
);
CREATE INDEX gates_parked ON gates (session) WHERE pause_deadline IS NOT NULL;
CREATE INDEX gates_held ON gates (session) WHERE held = 1;

-- Append-only, in the order of the commits. An index on event ids would cost three times what the
-- whole row does, because ids are random; a cursor is a place (session, seq) instead.
CREATE TABLE events (
    number INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    client_key_id TEXT,
    event_type TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    elided_from INTEGER,
    elided_tail TEXT,
    payload TEXT NOT NULL
);
CREATE UNIQUE INDEX events_by_session ON events (session, seq);
CREATE INDEX events_messages ON events (session, seq)
    WHERE event_type IN ('client.message.send', 'server.message.send');

-- What client keys may use: limits as JSON objects, and the tokens of the last day on which some were counted.

ALTER TABLE profiles ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';
ALTER TABLE client_keys ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';

CREATE TABLE token_usage (
    client_key_id TEXT PRIMARY KEY,
    day INTEGER NOT NULL,
    tokens INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX sessions_open_by_creator ON sessions (creator) WHERE state = 'open';

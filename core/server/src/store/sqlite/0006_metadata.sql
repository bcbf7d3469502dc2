-- What the participants of a session keep with it: a JSON object, and how often it was changed.

ALTER TABLE sessions ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}';
ALTER TABLE sessions ADD COLUMN metadata_version INTEGER NOT NULL DEFAULT 0;

-- The sessions of one client key, newest first.
CREATE INDEX participants_by_client ON participants (client_key_id, session);

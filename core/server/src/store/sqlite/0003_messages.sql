-- Messages under the ids that their senders gave them, in the order in which they began. `spans` is there once the turn
-- is over: the places of its events in the log. The answer is in the log too, unless one of the last columns has it.

CREATE TABLE messages (
    number INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (number),
    sender TEXT NOT NULL,
    id TEXT NOT NULL,
    digest TEXT NOT NULL,
    epoch INTEGER,
    spans TEXT,
    answer TEXT,
    error_code INTEGER,
    error_message TEXT
);
CREATE UNIQUE INDEX messages_by_id ON messages (session, sender, id);
CREATE INDEX messages_by_age ON messages (session);

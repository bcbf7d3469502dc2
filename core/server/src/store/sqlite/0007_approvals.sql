-- Questions for consent are events like others; this finds them.

CREATE INDEX events_approvals ON events (session, seq)
    WHERE event_type IN ('session.approval.requested', 'session.approval.resolved');

-- When a paused turn began to wait: it bounds how long its owner may hold it. Of a pause from before nobody knows; it counts
-- from its deadline.

ALTER TABLE gates ADD COLUMN pause_began INTEGER;
UPDATE gates SET pause_began = pause_deadline WHERE pause_deadline IS NOT NULL;

-- A number that an owner chose for what it wrote, the same in every try. When a reply was lost it tells
-- whether the event, and the step that came with it, are there. No index: it is looked for only then,
-- among the events of one run.
ALTER TABLE event ADD COLUMN mark bigint;

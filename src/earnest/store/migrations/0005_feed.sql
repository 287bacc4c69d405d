-- The feed of a scope: all its runs' events in one order, for who watches many runs at once.

-- Which transaction wrote an event. What became visible between two looks is found by it, exactly:
-- see engine/streams/sequencing.py.
ALTER TABLE event ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX event_written ON event (written_by);

-- A row says that events `from_seq` to `to_seq` of a run come next. Events are numbered through a
-- scope, 1, 2, 3 …, and `position` is the number of the row's last one. Who asked for the run stands
-- beside it, so that its own part of the feed is an index range. No foreign keys: rows are only ever
-- inserted from runs and events that are there.
CREATE TABLE feed (
    scope_id     text NOT NULL,
    position     bigint NOT NULL,
    principal_id text NOT NULL,
    run_id       uuid NOT NULL,
    from_seq     bigint NOT NULL,
    to_seq       bigint NOT NULL CHECK (to_seq >= from_seq),
    PRIMARY KEY (scope_id, position)
);
CREATE INDEX feed_of_principal ON feed (scope_id, principal_id, position);
CREATE INDEX feed_of_run ON feed (scope_id, run_id, to_seq);

-- Up to which position a scope's feed was pruned; a scope without a row has all of it.
CREATE TABLE feed_pruned (
    scope_id text PRIMARY KEY,
    position bigint NOT NULL
);

-- How far the sequencer is: it has seen what transactions below `seen_below` wrote, but for those
-- in `still_open`. Whose transactions these are is told by `server`; `at_once` is about how many
-- events one pass takes. The newest row counts. Each pass inserts one and deletes the one before: of
-- a row that is changed in place, every look would walk over all the versions that a long
-- transaction keeps alive.
CREATE TABLE sequenced (
    pass       bigint PRIMARY KEY,
    server     text,
    seen_below xid8 NOT NULL,
    still_open xid8[] NOT NULL,
    at_once    integer NOT NULL CHECK (at_once > 0)
);

-- The last pass; before the first one, one that has seen nothing.
CREATE VIEW last_pass AS
    SELECT pass, server, seen_below, still_open, at_once FROM sequenced
    UNION ALL SELECT 0::bigint, NULL::text, '1'::xid8, '{}'::xid8[], 5000
    ORDER BY pass DESC LIMIT 1;

-- What each process serves: so that others can say why a run is not taken up.

-- Of a process that only sends operations, or that is older than this, nothing is known.
ALTER TABLE instance
    ADD COLUMN lanes   text[]  NOT NULL DEFAULT '{}',
    ADD COLUMN kinds   text[]  NOT NULL DEFAULT '{}',
    ADD COLUMN effects text[]  NOT NULL DEFAULT '{}',
    ADD COLUMN slots   integer NOT NULL DEFAULT 0;

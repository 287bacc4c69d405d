-- Live text: what a run writes while it works. Progress for who watches, not a fact of business.

-- How far a run's text is. `last_sequence` goes on across attempts and is kept when the text itself
-- is pruned; the text of the newest attempt that wrote begins at `first_sequence`. The bounds are
-- the database's: what would pass one is refused as a whole.
CREATE TABLE text_head (
    scope_id       text NOT NULL,
    run_id         uuid NOT NULL,
    attempt        integer NOT NULL,
    first_sequence integer NOT NULL,
    last_sequence  integer NOT NULL CONSTRAINT text_of_a_run_count CHECK (last_sequence <= 4096),
    bytes          integer NOT NULL CONSTRAINT text_of_a_run_bytes CHECK (bytes <= 2097152),
    pruned_at      timestamptz,
    PRIMARY KEY (scope_id, run_id),
    FOREIGN KEY (scope_id, run_id) REFERENCES run
);
CREATE INDEX text_kept ON text_head (scope_id, run_id) WHERE pruned_at IS NULL;

-- No foreign key: a row is only ever inserted beside the change of its head.
CREATE TABLE text_delta (
    scope_id   text NOT NULL,
    run_id     uuid NOT NULL,
    sequence   integer NOT NULL CHECK (sequence > 0),
    attempt    integer NOT NULL,
    content    text NOT NULL CHECK (octet_length(content) BETWEEN 1 AND 65536),
    resets     boolean NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (scope_id, run_id, sequence)
);

-- How many bytes of text are kept for a principal.
CREATE TABLE text_quota (
    scope_id     text NOT NULL,
    principal_id text NOT NULL,
    bytes        bigint NOT NULL CHECK (bytes >= 0)
                 CONSTRAINT text_of_a_principal CHECK (bytes <= 67108864),
    PRIMARY KEY (scope_id, principal_id)
);

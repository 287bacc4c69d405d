-- Log lines: what a handler wrote for people, per attempt. Kept for a short time.

-- What an attempt has written. `left_out` counts the lines beyond what is kept of one attempt.
CREATE TABLE log_head (
    scope_id   text NOT NULL,
    run_id     uuid NOT NULL,
    attempt    integer NOT NULL,
    left_out   integer NOT NULL CHECK (left_out >= 0),
    written_at timestamptz NOT NULL,
    PRIMARY KEY (scope_id, run_id, attempt),
    FOREIGN KEY (scope_id, run_id) REFERENCES run
);
CREATE INDEX log_oldest ON log_head (written_at);

-- No foreign key: a row is only ever inserted beside the change of its head.
CREATE TABLE log_line (
    scope_id   text NOT NULL,
    run_id     uuid NOT NULL,
    attempt    integer NOT NULL,
    number     integer NOT NULL CHECK (number BETWEEN 1 AND 1000),
    message    text NOT NULL CHECK (octet_length(message) <= 8192),
    fields     jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (scope_id, run_id, attempt, number)
);

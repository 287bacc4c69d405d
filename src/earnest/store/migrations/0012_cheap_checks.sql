-- What a column may hold is said by domains. The server reads a table's own CHECKs anew, from their
-- text, for each statement that writes to it: a list of states costs a one-row statement more than
-- its row does. A domain's are read once for each session.

CREATE DOMAIN run_status AS text CHECK (VALUE IN ('queued', 'running', 'waiting', 'unknown',
    'blocked', 'succeeded', 'failed', 'cancelled'));
CREATE DOMAIN operation_state AS text CHECK (VALUE IN ('reserved', 'submitting', 'submitted',
    'unknown', 'released'));
CREATE DOMAIN recovery AS text CHECK (VALUE IN ('resend', 'lookup', 'hold'));
CREATE DOMAIN release_reason AS text CHECK (VALUE IN ('not_sent', 'absent', 'refused', 'given_up'));
CREATE DOMAIN step_kind AS text CHECK (VALUE IN ('step', 'emit', 'timer'));
CREATE DOMAIN tally AS smallint CHECK (VALUE >= 0);

DROP VIEW attempt;
ALTER TABLE execution
    DROP CONSTRAINT execution_status_check,
    DROP CONSTRAINT execution_max_attempts_check,
    DROP CONSTRAINT execution_doubts_check,
    DROP CONSTRAINT execution_reserved_check,
    DROP CONSTRAINT execution_check1,
    ALTER status TYPE run_status,
    ALTER max_attempts TYPE tally,
    ALTER doubts TYPE tally,
    ALTER reserved TYPE tally,
    -- The final ones, in the form that is read fastest.
    ADD CONSTRAINT execution_finished CHECK (
        (strpos('blocked succeeded failed cancelled', status) > 0) = (finished_at IS NOT NULL));
ALTER TABLE operation
    DROP CONSTRAINT operation_state_check,
    DROP CONSTRAINT operation_recovery_check,
    DROP CONSTRAINT operation_release_reason_check,
    ALTER state TYPE operation_state,
    ALTER recovery TYPE recovery,
    ALTER release_reason TYPE release_reason;
ALTER TABLE step
    DROP CONSTRAINT step_kind_check,
    ALTER kind TYPE step_kind;
CREATE VIEW attempt AS
    SELECT scope_id, run_id, fence, instance_id, started_at, ended_at, outcome, error
    FROM past_attempt
    UNION ALL
    SELECT scope_id, run_id, fence, instance_id, attempt_started_at, NULL, NULL, NULL
    FROM execution WHERE status = 'running';

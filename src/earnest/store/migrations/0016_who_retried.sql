-- Whoever asks for a run may be kept from deciding about it, also by asking for it anew.

-- Who asked for this revision; null for a first one. It still belongs to whoever asked for that.
ALTER TABLE run
    ADD COLUMN retried_by text,
    ADD CHECK (retried_by IS NULL OR retry_of IS NOT NULL);

-- Who may not decide: whoever asked for the run or retried it, or one that it came from (an earlier
-- revision, a parent). Empty where the proposer may decide.
ALTER TABLE approval
    ADD COLUMN excluded text[] NOT NULL DEFAULT '{}',
    ADD CHECK (decided_by IS NULL OR decided_by <> ALL (excluded));

"""A database as it is after a while: twenty thousand runs, most of them long over, half of them of
one scope (`scope-0`) and the others of fifty.

Written in bulk, since the statements that write rows one by one would take minutes. `quiet` is the
same on a day when nothing is going on: what the planner learns then must not harm the day after.
"""

from __future__ import annotations

import asyncpg

SCOPES, RUNS, INSTANCES = 50, 20_000, 10

# Of a hundred runs in a row: how many have which status, and of their operations which state.
_STATUSES = """
    CASE WHEN part < 70 THEN 'succeeded' WHEN part < 80 THEN 'queued' WHEN part < 84 THEN 'waiting'
         WHEN part < 87 THEN 'failed' WHEN part < 90 THEN 'blocked' WHEN part < 92 THEN 'unknown'
         WHEN part < 94 THEN 'running' ELSE 'cancelled' END
"""
_STATES = """
    CASE WHEN part < 80 THEN 'submitted' WHEN part < 85 THEN 'released'
         WHEN part < 90 THEN 'unknown' WHEN part < 95 THEN 'submitting' ELSE 'reserved' END
"""

_FILL = f"""
CREATE TEMPORARY TABLE made AS
SELECT n, 'scope-' || CASE WHEN n % 2 = 0 THEN 0 ELSE n % {SCOPES} END AS scope_id,
       ('018e0000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS run_id,
       part, {_STATUSES} AS status, clock() - n * interval '1 minute' AS at
FROM (SELECT n, n * 37 % 100 AS part FROM generate_series(1, {RUNS}) AS n) AS numbered;

INSERT INTO scope (scope_id, created_at)
SELECT 'scope-' || n, clock() FROM generate_series(0, {SCOPES} - 1) AS n;

INSERT INTO principal (scope_id, principal_id, roles, created_at)
SELECT scope_id, p, '{{member}}', clock() FROM scope, unnest('{{alice,bob}}'::text[]) AS p;

INSERT INTO token (scope_id, token_id, principal_id, secret_hash, created_at, created_by,
                   idempotency_key, fingerprint)
SELECT scope_id, 't' || n, 'alice', '', at, 'bob', 'key-' || n, '' FROM made WHERE n <= 2000;

INSERT INTO audit (scope_id, audit_id, principal_id, action, subject, detail, created_at)
SELECT scope_id, run_id, (ARRAY['alice', 'bob'])[1 + n % 2],
       (ARRAY['run.cancelled', 'run.retried', 'token.issued'])[1 + n % 3], 'run-' || n / 3, '{{}}',
       at
FROM made;

INSERT INTO run (scope_id, run_id, kind, lane, principal_id, idempotency_key, fingerprint, input,
                 context, labels, conversation_id, parent_run_id, detached, lineage_id, revision,
                 created_at)
SELECT scope_id, run_id, 'kind-' || n % 5, 'default', (ARRAY['alice', 'bob'])[1 + n % 2],
       CASE WHEN n % 3 = 0 THEN 'key-' || n END, '', '{{}}', '{{}}', '{{}}',
       CASE WHEN n % 4 = 0 THEN 'talk-' || n / 40 END,
       CASE WHEN n % 7 = 0 AND n > {SCOPES}
            THEN ('018e0000-0000-7000-8000-' || lpad(to_hex(n - {SCOPES}), 12, '0'))::uuid END,
       false, run_id, 1, at
FROM made ORDER BY n;

INSERT INTO execution (scope_id, run_id, kind, lane, status, fence, owner_token, instance_id,
                       lease_until, ready, due_at, turn_at, priority, max_attempts, fails_on_doubt,
                       parent_run_id, wake_at, deadline_at, last_seq, started_at, finished_at,
                       attempt_started_at)
SELECT m.scope_id, m.run_id, r.kind, 'default', m.status, 1, gen_random_uuid(),
       ('00000000-0000-0000-0000-' || lpad((m.n % {INSTANCES} + 1)::text, 12, '0'))::uuid,
       CASE WHEN m.status = 'running' THEN clock() + interval '30 s' END,
       m.n % 5 > 0, m.at, m.at, 0, 3, false, r.parent_run_id,
       CASE WHEN m.status = 'waiting' AND m.n % 2 = 0 THEN clock() + m.n * interval '1 s' END,
       CASE WHEN m.n % 3 = 0 THEN clock() + m.n * interval '1 s' END, 3, m.at,
       CASE WHEN m.status IN ('succeeded', 'failed', 'cancelled', 'blocked') THEN m.at END, m.at
FROM made m JOIN run r USING (scope_id, run_id);

INSERT INTO event (scope_id, run_id, seq, type, payload, created_at, written_by)
SELECT scope_id, run_id, seq, 'run.progress', '{{}}', at, (n / 50 + 1)::text::xid8
FROM made, generate_series(1, 3) AS seq;

INSERT INTO feed (scope_id, position, principal_id, run_id, from_seq, to_seq)
SELECT scope_id, 3 * row_number() OVER (PARTITION BY scope_id ORDER BY n), principal_id, run_id, 1,
       3
FROM made JOIN run USING (scope_id, run_id);
INSERT INTO sequenced (pass, seen_below, still_open, at_once)
VALUES (1, pg_snapshot_xmax(pg_current_snapshot()), '{{}}', 5000);

INSERT INTO text_head (scope_id, run_id, attempt, first_sequence, last_sequence, bytes, pruned_at)
SELECT scope_id, run_id, 1, 1, 3, 15, CASE WHEN n > 2000 THEN at END FROM made WHERE n % 5 = 0;

INSERT INTO text_delta (scope_id, run_id, sequence, attempt, content, resets, created_at)
SELECT scope_id, run_id, sequence, 1, 'words', false, at
FROM made, generate_series(1, 3) AS sequence WHERE n % 5 = 0 AND n <= 2000;

INSERT INTO text_quota (scope_id, principal_id, bytes)
SELECT scope_id, principal_id, 1000 FROM principal;

INSERT INTO past_attempt (scope_id, run_id, fence, instance_id, started_at, ended_at, outcome)
SELECT scope_id, run_id, 1, gen_random_uuid(), at, at, 'succeeded' FROM made
WHERE status = 'succeeded';

INSERT INTO step (scope_id, run_id, name, kind, digest, fence, created_at)
SELECT scope_id, run_id, 'step-' || n % 3, 'step', '', 1, at FROM made WHERE n % 2 = 0;

INSERT INTO signal (scope_id, run_id, name, number, payload, principal_id, idempotency_key,
                    created_at)
SELECT scope_id, run_id, 'go', 1, '{{}}', 'bob', 'key-' || n, at FROM made WHERE n % 10 = 0;

INSERT INTO operation (scope_id, operation_id, run_id, principal_id, name, kind, state, recovery,
                       provider, resource_key, keeps_resource, live, request, digest, fence,
                       dedupes, timeout, submitted_at, unknown_since, lookup_due_at, call_until,
                       release_reason, created_at)
SELECT scope_id, run_id, run_id, 'alice', 'refund', 'bank.refund', state, 'lookup', 'bank',
       CASE WHEN n % 4 = 0 THEN 'order-' || n END, true, state <> 'released', '{{}}', '', 1, true,
       '30 s', CASE WHEN state = 'submitted' THEN at END, CASE WHEN state = 'unknown' THEN at END,
       CASE WHEN state = 'unknown' THEN clock() + n * interval '1 s' END,
       CASE WHEN state = 'submitting' THEN clock() END,
       CASE WHEN state = 'released' THEN 'not_sent' END, at
FROM (SELECT *, {_STATES} AS state FROM made WHERE n % 4 > 0) AS m;

INSERT INTO approval (scope_id, approval_id, run_id, name, operation_id, effect, proposal, digest,
                      role, status, requested_at, expires_at, decided_by, decided_at, proposer,
                      excludes_proposer)
SELECT scope_id, operation_id, run_id, name, operation_id, kind, request, digest, 'approver',
       status, created_at, created_at + interval '30 days',
       CASE WHEN status = 'approved' THEN 'bob' END,
       CASE WHEN status = 'approved' THEN created_at END, principal_id, false
FROM (SELECT *, CASE state WHEN 'reserved' THEN 'pending' WHEN 'released' THEN 'cancelled'
                ELSE 'approved' END AS status FROM operation) AS asked;

INSERT INTO operation_move (scope_id, operation_id, version, move, state, fence, by, detail,
                            created_at)
SELECT scope_id, operation_id, number, 'm', state, 0, 'b', '{{}}', created_at
FROM operation, generate_series(1, 3) AS number;

INSERT INTO operation_lookup (scope_id, operation_id, number, answer, detail, created_at)
SELECT scope_id, operation_id, 1, 'absent', '', created_at FROM operation;

INSERT INTO finding (scope_id, finding_id, operation_id, kind, detail, created_at)
SELECT scope_id, operation_id, operation_id, 'late_receipt', '{{}}', created_at
FROM operation WHERE state = 'released';

INSERT INTO sink (scope_id, sink_id, kind, address, types, state, position, secret, created_by,
                  created_at)
SELECT scope_id, ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 'webhook', 'https://x',
       '{{*}}', (ARRAY['active', 'active', 'paused', 'disabled'])[n], 10, '', 'bob', clock()
FROM scope, generate_series(1, 4) AS n;

INSERT INTO delivery (scope_id, sink_id, delivery_id, message_id, type, run_id, payload,
                      happened_at, state, due_at, ended_at, created_at)
SELECT scope_id, ('00000000-0000-0000-0000-' || lpad((1 + n % 4)::text, 12, '0'))::uuid, run_id,
       run_id, 'type-' || n % 3, run_id, '{{}}', at, state, at + interval '1 day',
       CASE WHEN state <> 'pending' THEN at END, at
FROM (SELECT *, CASE WHEN part < 90 THEN 'delivered' WHEN part < 97 THEN 'pending' ELSE 'dead' END
      AS state FROM made) AS m;

INSERT INTO outbox (scope_id, message_id, type, run_id, payload, created_at)
SELECT scope_id, run_id, 'type', run_id, '{{}}', at FROM made WHERE n % 50 = 0;

INSERT INTO inbox_source (scope_id, name, handler, secret, created_by, created_at)
SELECT scope_id, 's-' || scope_id || n, 'bank', '', 'bob', clock()
FROM scope, generate_series(1, 3) AS n;

INSERT INTO inbox_entry (scope_id, source, message_id, outcome, received_at)
SELECT scope_id, 's-' || scope_id || 1, 'msg-' || n, '{{}}', at FROM made;

INSERT INTO instance (instance_id, lock_number, host, process, started_at, ended_at)
SELECT ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, n, '', '', clock(),
       CASE WHEN n > {INSTANCES} THEN clock() END
FROM generate_series(1, 200) AS n;

INSERT INTO artifact_room (scope_id, used_bytes) SELECT scope_id, 1000000 FROM scope;

-- Of ten blobs in a row one arrives and one is discarded; of ten artifacts one was deleted.
INSERT INTO blob (scope_id, blob_id, state, size, sha256, pieces, alive_until, discarded_at,
                  created_at)
SELECT scope_id, run_id, state, 9, sha256(run_id::text::bytea), '',
       CASE WHEN state = 'arriving' THEN clock() + n * interval '1 s' END,
       CASE WHEN state = 'discarded' THEN at END, at
FROM (SELECT *, CASE n % 10 WHEN 0 THEN 'arriving' WHEN 1 THEN 'discarded' ELSE 'stored' END
             AS state FROM made) AS m;

INSERT INTO artifact (scope_id, artifact_id, blob_id, run_id, principal_id, owner_id, name,
                      media_type, idempotency_key, fingerprint, created_at, expires_at, deleted_at)
SELECT scope_id, run_id, CASE WHEN n % 10 > 2 THEN run_id END,
       CASE WHEN n % 2 = 0 THEN run_id END, (ARRAY['alice', 'bob'])[1 + n % 2],
       (ARRAY['alice', 'bob'])[1 + n % 2], 'x', 'a/b', CASE WHEN n % 3 = 0 THEN 'key-' || n END, '',
       at, CASE WHEN n % 3 = 0 AND n % 10 > 2 THEN clock() + n * interval '1 s' END,
       CASE WHEN n % 10 = 2 THEN at END
FROM made WHERE n % 10 > 1;

UPDATE operation SET external_ref = 'r-' || operation_id, first_begun_at = created_at
WHERE state = 'submitted';

INSERT INTO sweep (scope_id, sweep_id, effect, since, state, created_by, created_at, finished_at,
                   lease_until, asked_at)
SELECT scope_id, run_id, 'bank.refund', at,
       CASE WHEN n = newest THEN 'running' ELSE 'complete' END, 'bob', at,
       CASE WHEN n <> newest THEN at END, CASE WHEN n = newest THEN clock() END, at
FROM (SELECT *, min(n) OVER (PARTITION BY scope_id) AS newest FROM made) AS m WHERE n % 10 < 3;

INSERT INTO sweep_seen (scope_id, sweep_id, operation_id)
SELECT scope_id, sweep_id, operation_id FROM sweep JOIN operation o USING (scope_id)
WHERE sweep.state = 'running' AND o.state = 'submitted' LIMIT 10000;

INSERT INTO sweep_difference (scope_id, difference_id, effect, kind, why, subject, happened_at,
                              state, found_at, seen_at, ended_at)
SELECT scope_id, run_id, 'bank.refund', 'effect_without_record', 'no_operation', 'r-' || n, at,
       CASE WHEN n % 9 = 0 THEN 'open' ELSE 'vanished' END, at, at,
       CASE WHEN n % 9 > 0 THEN at END
FROM made WHERE n % 3 = 0;

INSERT INTO sweep_sighting (scope_id, sweep_id, difference_id)
SELECT scope_id, sweep_id, difference_id FROM sweep JOIN sweep_difference USING (scope_id)
WHERE sweep_id = difference_id OR sweep.state = 'running';

INSERT INTO log_head (scope_id, run_id, attempt, left_out, written_at)
SELECT scope_id, run_id, 1, 0, at FROM made WHERE n % 5 = 0;

INSERT INTO log_line (scope_id, run_id, attempt, number, message, fields, created_at)
SELECT scope_id, run_id, 1, number, 'line', '{{}}', at
FROM made, generate_series(1, 4) AS number WHERE n % 5 = 0;

ANALYZE;
"""


_QUIET = """
UPDATE execution SET status = 'succeeded', lease_until = NULL, finished_at = clock();
UPDATE operation SET state = 'submitted', submitted_at = clock(), unknown_since = NULL,
                     release_reason = NULL, lookup_due_at = NULL;
UPDATE approval SET status = 'cancelled', decided_by = NULL, decided_at = NULL;
UPDATE blob SET state = 'discarded', alive_until = NULL, discarded_at = clock()
WHERE state = 'arriving';
DELETE FROM blob WHERE state = 'discarded';
DELETE FROM artifact WHERE deleted_at IS NOT NULL;
DELETE FROM outbox;
UPDATE delivery SET state = 'delivered', ended_at = clock();
VACUUM FULL ANALYZE outbox, delivery, execution, operation, approval, blob, artifact
"""


async def fill(connection: asyncpg.Connection, *, quiet: bool = False) -> None:
    await connection.execute(_FILL)
    if quiet:
        for statement in _QUIET.split(";\n"):
            await connection.execute(statement)

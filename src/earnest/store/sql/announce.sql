-- What the code knows, told to those that cannot ask it; and requests that only the database saw.

-- name: announce_kinds
-- Arrays of equal length: $1 names, $2 lanes, $3 max attempts, $4 deadlines, $5 fail on doubt,
-- $6 schemas of the inputs. Back come the names whose terms are new or other than before. In the
-- order of names, so that two processes that announce at once wait for each other and no more.
INSERT INTO run_kind (name, lane, max_attempts, deadline, fails_on_doubt, input_schema,
                      announced_at)
SELECT name, lane, max_attempts, deadline, fails_on_doubt, input_schema, clock()
FROM unnest($1::text[], $2::text[], $3::smallint[], $4::interval[], $5::boolean[], $6::jsonb[])
    AS k (name, lane, max_attempts, deadline, fails_on_doubt, input_schema)
ORDER BY name
ON CONFLICT (name) DO UPDATE
SET lane = excluded.lane, max_attempts = excluded.max_attempts, deadline = excluded.deadline,
    fails_on_doubt = excluded.fails_on_doubt, input_schema = excluded.input_schema,
    announced_at = excluded.announced_at
WHERE (run_kind.lane, run_kind.max_attempts, run_kind.deadline, run_kind.fails_on_doubt,
       run_kind.input_schema)
      IS DISTINCT FROM
      (excluded.lane, excluded.max_attempts, excluded.deadline, excluded.fails_on_doubt,
       excluded.input_schema)
RETURNING name;

-- name: earlier_request
-- What a run was asked to do. $1 scope, $2 run, $3 an input to compare with its own.
SELECT kind, input, input = $3::jsonb AS same_input, fingerprint FROM run
WHERE scope_id = $1 AND run_id = $2 AND retry_of IS NULL;

-- name: origin_of_input
-- $1 scope, $2 run, $3 kind, $4 the schema that this process has for its input. `unchecked`: nobody
-- compared the input with a type before it was stored; a retry by a person has the input of the
-- first revision. `agreed`: the schema is the one that was announced last.
SELECT first.fingerprint = 'sql' AS unchecked, k.input_schema = $4::jsonb AS agreed
FROM run r
JOIN run first ON first.scope_id = r.scope_id AND first.run_id = r.lineage_id
LEFT JOIN run_kind k ON k.name = $3
WHERE r.scope_id = $1 AND r.run_id = $2;

-- Submitting from SQL: `SELECT earnest.submit(…)` inside a transaction of one's own.
--
-- What SQL must know of the code is announced to it: each process that runs or takes work writes
-- the terms of the kinds that it knows. Types cannot be checked here; an input that does not fit
-- is refused by the first attempt.

CREATE TABLE run_kind (
    name           text PRIMARY KEY,
    lane           text NOT NULL,
    max_attempts   smallint NOT NULL CHECK (max_attempts > 0),
    deadline       interval,
    fails_on_doubt boolean NOT NULL,
    input_schema   jsonb NOT NULL,
    announced_at   timestamptz NOT NULL
);

-- As whom a database role submits, scope by scope. By name, as the server's own access files have
-- it: a dump that is restored elsewhere finds its roles again. Nothing here follows the dropping
-- of a role.
CREATE TABLE database_role (
    role_name    text NOT NULL,
    scope_id     text NOT NULL,
    principal_id text NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (role_name, scope_id),
    FOREIGN KEY (scope_id, principal_id) REFERENCES principal
);

-- Only `submit` and `map_role` set a search path, and only they are called from outside. The others
-- find the tables by that path: setting it again would cost at each call.

-- ---- ids ----------------------------------------------------------------------------------------

-- A UUIDv7 (RFC 9562): 48 bits of milliseconds, the version, and what is random in a UUIDv4. The
-- server has a function of its own only since PostgreSQL 18.
CREATE FUNCTION new_run_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7' || substr(translate(gen_random_uuid()::text, '-', ''), 14))::uuid
$$;

-- The TypeID of a run: two zero bits and the 128 of the id, in 26 letters of five bits each. A loop
-- takes half the time of an aggregate.
CREATE FUNCTION show_run_id(run_id uuid) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT
PARALLEL SAFE
AS $$
DECLARE
    letters CONSTANT text     := '0123456789abcdefghjkmnpqrstvwxyz';
    bits    CONSTANT bit(130) := B'00' || ('x' || translate(run_id::text, '-', ''))::bit(128);
    shown            text     := 'run_';
BEGIN
    FOR place IN 0..25 LOOP
        shown := shown || substr(letters, 1 + substring(bits, 5 * place + 1, 5)::integer, 1);
    END LOOP;
    RETURN shown;
END $$;

-- ---- judging a request --------------------------------------------------------------------------

CREATE FUNCTION refuse_request(message text) RETURNS void LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = message; END $$;

-- How many bytes of JSON without blanks this is. A jsonb is printed with a blank behind every comma
-- and colon; those inside of strings are kept. Only asked of what is near the limit: it costs.
CREATE FUNCTION bytes_of_json(value jsonb) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT octet_length(regexp_replace(value::text, '("(?:[^"\\]|\\.)*")|([,:]) ', '\1\2', 'g'))
$$;

-- As whom the session's user submits in the scope. `session_user` is who logged in: SET ROLE does
-- not change it, and inside a function that runs with its owner's rights it is the only name that
-- the caller cannot choose.
CREATE FUNCTION submitting_principal(scope text) RETURNS text LANGUAGE plpgsql STABLE
AS $$
DECLARE
    found record;
BEGIN
    SELECT p.principal_id, p.roles && '{member,operator}'::text[] AS may INTO found
    FROM database_role r JOIN principal p USING (scope_id, principal_id)
    WHERE r.role_name = session_user AND r.scope_id = scope;
    IF found.principal_id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format(
            'the database role %I may not submit in scope %L; an administrator can let it: '
            'SELECT earnest.map_role(%L, %L, ''<principal>'')',
            session_user, left(scope, 80), session_user, left(scope, 80));
    END IF;
    IF NOT found.may THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format(
            'the principal %L has no role that may submit in scope %L; give it the role member',
            found.principal_id, scope);
    END IF;
    RETURN found.principal_id;
END $$;

CREATE FUNCTION announced_kind(kind text) RETURNS run_kind LANGUAGE plpgsql STABLE
AS $$
DECLARE
    found run_kind;
BEGIN
    SELECT * INTO found FROM run_kind WHERE name = kind;
    IF found.name IS NULL THEN
        PERFORM refuse_request(format(
            'no run kind %L is announced; known are: %s. A kind is announced when a worker that '
            'has it starts', left(kind, 80),
            (SELECT coalesce(string_agg(name, ', ' ORDER BY name), 'none') FROM run_kind)));
    END IF;
    RETURN found;
END $$;

CREATE FUNCTION check_lane(lane text) RETURNS void LANGUAGE plpgsql STABLE
AS $$
DECLARE
    known text[] := (SELECT array_agg(DISTINCT k.lane ORDER BY k.lane)
                     FROM (SELECT 'default' UNION ALL SELECT r.lane FROM run_kind r) AS k (lane));
BEGIN
    IF lane <> ALL (known) THEN
        PERFORM refuse_request(format('there is no lane %L; there are: %s', left(lane, 80),
                                      array_to_string(known, ', ')));
    END IF;
END $$;

CREATE FUNCTION check_labels(labels jsonb) RETURNS void LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF jsonb_typeof(labels) <> 'object' THEN
        PERFORM refuse_request('labels are an object of texts, such as {"order": "17"}');
    END IF;
    IF (SELECT count(*) > 32 OR bool_or(jsonb_typeof(l.value) <> 'string'
                                        OR length(l.value #>> '{}') > 200
                                        OR length(l.key) NOT BETWEEN 1 AND 100)
        FROM jsonb_each(labels) AS l) THEN
        PERFORM refuse_request('at most 32 labels are taken: names of 1 to 100 characters, texts '
                               'of at most 200');
    END IF;
END $$;

-- Refused is what is too large, and what PostgreSQL can keep but the programs that run it could not
-- read: it would be in the way of everything that is claimed together with it.
CREATE FUNCTION check_input(input jsonb) RETURNS void LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    most CONSTANT integer := 262144;
    size          integer := octet_length(input::text);
BEGIN
    IF input IS NULL THEN
        PERFORM refuse_request('the input is NULL; an empty one is ''null'' or ''{}''');
    END IF;
    -- Not more than a third of it can be blanks.
    IF size > most AND size <= most * 3 / 2 THEN
        size := bytes_of_json(input);
    END IF;
    IF size > most THEN
        PERFORM refuse_request(format(
            'the input has %s bytes; at most %s are taken: store larger things as artifacts and '
            'pass their ids', size, most));
    END IF;
    IF size > 200 AND jsonb_path_exists(input, 'strict $.**{100}') THEN
        PERFORM refuse_request('the input is nested deeper than 100 levels');
    END IF;
    -- The pattern costs little, and is followed only where so many digits are a number.
    IF size > 300 AND input::text ~ '[0-9]{200}'
       AND jsonb_path_exists(input, 'strict $.** ? (@ >= 1e308 || @ <= -1e308)') THEN
        PERFORM refuse_request('the input has a number beyond 1e308');
    END IF;
END $$;

-- The same rules as at the other doors.
CREATE FUNCTION check_request(
    key text, lane text, priority integer, not_before timestamptz, labels jsonb
) RETURNS void LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF length(key) NOT BETWEEN 1 AND 255 THEN
        PERFORM refuse_request('an idempotency key has 1 to 255 characters');
    END IF;
    IF priority NOT BETWEEN -1000 AND 1000 THEN
        PERFORM refuse_request('priority is a whole number from -1000 to 1000');
    END IF;
    -- A time that other programs cannot read would stand in the way of all that are due before it.
    IF NOT isfinite(not_before) OR not_before >= '9999-01-01 UTC' THEN
        PERFORM refuse_request('not_before is a time before the year 9999');
    END IF;
    PERFORM check_lane(lane);
    PERFORM check_labels(labels);
END $$;

-- ---- submitting ---------------------------------------------------------------------------------

-- The input with the defaults that its schema has for members that are not given: so it would have
-- been stored, had it come through another door.
CREATE FUNCTION with_defaults(input jsonb, input_schema jsonb) RETURNS jsonb LANGUAGE plpgsql
IMMUTABLE
AS $$
BEGIN
    IF jsonb_typeof(input) <> 'object'
       OR jsonb_typeof(input_schema -> 'properties') IS DISTINCT FROM 'object' THEN
        RETURN input;
    END IF;
    RETURN (SELECT coalesce(jsonb_object_agg(member.key, member.value -> 'default'), '{}')
            FROM jsonb_each(input_schema -> 'properties') AS member
            WHERE member.value ? 'default') || input;
END $$;

-- The run that has this key, if it was asked for with the same kind and input.
CREATE FUNCTION run_of_key(scope text, principal text, key text, kind run_kind, input jsonb)
RETURNS uuid LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    other record;
BEGIN
    SELECT r.run_id, r.kind, r.input, r.retry_of INTO other FROM run r
    WHERE r.scope_id = scope AND r.principal_id = principal AND r.idempotency_key = run_of_key.key;
    IF NOT FOUND THEN
        -- It was in the way of the insert and is not to be seen: another snapshot will know.
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = format(
            'the key %L is in use by a transaction that this one cannot see; run it again', key);
    END IF;
    IF other.kind <> kind.name OR other.retry_of IS NOT NULL
       OR other.input NOT IN (run_of_key.input, with_defaults(run_of_key.input, kind.input_schema))
    THEN
        RAISE EXCEPTION USING ERRCODE = 'RK409', MESSAGE = format(
            'the key %L was used for another request (%s); use a new key, or send the same request '
            'again', key, show_run_id(other.run_id));
    END IF;
    RETURN other.run_id;
END $$;

-- Makes a run in the caller's transaction and returns its id; with a key that was used for the same
-- request it returns the id of that run. Nobody sees the run before the commit; a rollback takes it
-- back. It locks nothing but the rows that it writes, and rings no bell: idle workers look by
-- themselves. The fingerprint `sql` says that nobody has checked the input and that a request is
-- compared by kind and input.
CREATE FUNCTION submit(
    scope text, kind text, input jsonb, key text DEFAULT NULL, lane text DEFAULT NULL,
    priority integer DEFAULT 0, not_before timestamptz DEFAULT NULL, labels jsonb DEFAULT '{}'
) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = earnest, pg_temp
AS $$
DECLARE
    principal text     := submitting_principal(scope);
    terms     run_kind := announced_kind(kind);
    in_lane   text     := coalesce(lane, terms.lane);
    turn      smallint;
    id        uuid     := new_run_id();
BEGIN
    PERFORM check_input(input);
    PERFORM check_request(key, in_lane, priority, not_before, labels);
    turn := coalesce(priority, 0);
    WITH asked AS (
        INSERT INTO run (scope_id, run_id, kind, lane, principal_id, idempotency_key, fingerprint,
                         input, context, labels, detached, lineage_id, revision, created_at)
        VALUES (scope, id, terms.name, in_lane, principal, submit.key, 'sql', submit.input, '{}',
                coalesce(submit.labels, '{}'), false, id, 1, clock())
        ON CONFLICT DO NOTHING
        RETURNING scope_id, run_id, created_at
    ), due AS (
        SELECT *, greatest(created_at, submit.not_before) AS due_at FROM asked
    ), queued AS (
        INSERT INTO execution (scope_id, run_id, kind, lane, status, ready, due_at, turn_at,
                               priority, max_attempts, fails_on_doubt, deadline_at, last_seq)
        SELECT scope_id, run_id, terms.name, in_lane, 'queued', due_at = created_at, due_at,
               due_at - turn * interval '1 minute', turn, terms.max_attempts, terms.fails_on_doubt,
               created_at + terms.deadline, 1
        FROM due
    )
    INSERT INTO event (scope_id, run_id, seq, type, payload, created_at)
    SELECT scope_id, run_id, 1, 'run.submitted',
           jsonb_build_object('kind', terms.name, 'lane', in_lane), created_at
    FROM due;
    IF NOT FOUND THEN
        id := run_of_key(scope, principal, key, terms, input);
    END IF;
    RETURN show_run_id(id);
END $$;

-- ---- who may ------------------------------------------------------------------------------------

-- From now on the role submits in the scope as the principal. All three must be there. Whoever owns
-- the schema may do this.
CREATE FUNCTION map_role(role text, scope text, principal text) RETURNS void LANGUAGE plpgsql
SET search_path = earnest, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_object', MESSAGE = format(
            'there is no database role %L; make it first: CREATE ROLE %I LOGIN', role, role);
    END IF;
    IF NOT EXISTS (SELECT FROM principal p
                   WHERE p.scope_id = scope AND p.principal_id = principal) THEN
        RAISE EXCEPTION USING ERRCODE = 'no_data_found', MESSAGE = format(
            'scope %L has no principal %L; make it first', scope, principal);
    END IF;
    -- Two grants on one thing at the same time would fail; readers are not held up.
    LOCK TABLE database_role IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO database_role (role_name, scope_id, principal_id, created_at)
    VALUES (role, scope, principal, clock())
    ON CONFLICT (role_name, scope_id) DO UPDATE SET principal_id = excluded.principal_id;
    EXECUTE format('GRANT USAGE ON SCHEMA earnest TO %I', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION submit TO %I', role);
END $$;

REVOKE ALL ON FUNCTION new_run_id, show_run_id, refuse_request, bytes_of_json, submitting_principal,
    announced_kind, check_lane, check_labels, check_input, check_request, with_defaults, run_of_key,
    submit, map_role FROM PUBLIC;

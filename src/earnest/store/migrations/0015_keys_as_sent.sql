-- A key is compared by what was sent, before defaults, in SQL as through the other doors.

-- The bytes from which programs take the digest of a request (`domain/canonical.py`): no blanks, keys
-- in the order of their bytes. Numbers stand as they were sent, except that a jsonb writes out every
-- digit of those with an exponent; such a request is not recognized.
CREATE FUNCTION canonical_json(value jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
BEGIN
    RETURN CASE jsonb_typeof(value)
        WHEN 'object' THEN (
            SELECT '{' || coalesce(string_agg(to_json(m.key) || ':' || canonical_json(m.value), ','
                                              ORDER BY m.key COLLATE "C"), '') || '}'
            FROM jsonb_each(value) AS m)
        WHEN 'array' THEN (
            SELECT '[' || coalesce(string_agg(canonical_json(a.item), ',' ORDER BY a.place), '')
                   || ']'
            FROM jsonb_array_elements(value) WITH ORDINALITY AS a (item, place))
        ELSE value::text
    END;
END $$;

-- Whether a run was asked for with this kind and input, as they were sent: a default that is spelled
-- out makes another request than one that is left out. A run from SQL has its input as it was sent,
-- others have the digest of the request; or, where what was handed over in Python was no JSON before,
-- of what its type wrote, which is compared with the defaults filled in.
CREATE FUNCTION is_same_request(other run, kind run_kind, input jsonb) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    sent    CONSTANT text := canonical_json(jsonb_build_object('kind', kind.name, 'input', input));
    written CONSTANT bytea := convert_to(kind.name, 'UTF8') || '\x00'::bytea
                              || convert_to(canonical_json(other.input), 'UTF8');
BEGIN
    RETURN other.kind = kind.name AND other.retry_of IS NULL AND CASE other.fingerprint
        WHEN 'sql' THEN other.input = input
        WHEN sha256(convert_to(sent, 'UTF8')) THEN true
        WHEN sha256(written) THEN other.input IN (input, with_defaults(input, kind.input_schema))
        ELSE false
    END;
END $$;

-- The run that has this key, if it was asked for with the same kind and input.
CREATE OR REPLACE FUNCTION run_of_key(scope text, principal text, key text, kind run_kind, input jsonb)
RETURNS uuid LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    other run;
BEGIN
    SELECT * INTO other FROM run r
    WHERE r.scope_id = scope AND r.principal_id = principal AND r.idempotency_key = run_of_key.key;
    IF NOT FOUND THEN
        -- It was in the way of the insert and is not to be seen: another snapshot will know.
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = format(
            'the key %L is in use by a transaction that this one cannot see; run it again', key);
    END IF;
    IF NOT is_same_request(other, kind, input) THEN
        RAISE EXCEPTION USING ERRCODE = 'RK409', MESSAGE = format(
            'the key %L was used for another request (%s); use a new key, or send the same request '
            'again', key, show_run_id(other.run_id));
    END IF;
    RETURN other.run_id;
END $$;

REVOKE ALL ON FUNCTION canonical_json, is_same_request FROM PUBLIC;

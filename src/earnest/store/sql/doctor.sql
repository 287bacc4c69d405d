-- What a doctor asks about the server and about the work in it. Asked by people, each with a bound.

-- name: server_version
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::int AS number, pg_is_in_recovery() AS standby,
       pg_database_size(current_database()) AS bytes,
       (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()) AS age;

-- name: connections_used
SELECT (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
       current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int AS most;

-- name: long_transactions
-- What keeps rows that are dead from being cleaned up: $1 for how long at least.
SELECT 'process ' || pid || coalesce(' (' || nullif(application_name, '') || ')', '') AS who, state,
       extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND xact_start < clock_timestamp() - $1::interval
UNION ALL
SELECT 'prepared transaction ' || quote_literal(gid), 'prepared',
       extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - $1::interval
ORDER BY seconds DESC LIMIT 10;

-- name: tables_kept
-- How the tables that change often are cleaned up.
SELECT s.relname::text AS name, s.n_live_tup AS live, s.n_dead_tup AS dead,
       pg_total_relation_size(s.relid) AS bytes, s.last_autovacuum,
       coalesce('autovacuum_enabled=false' = ANY (c.reloptions), false) AS forbidden
FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.schemaname = 'earnest' ORDER BY s.n_dead_tup DESC, s.relname;

-- name: autovacuum_settings
SELECT name, setting FROM pg_settings WHERE name IN ('autovacuum', 'track_counts')
ORDER BY name;

-- name: due_by_kind
-- What is due by lane and kind, as far as it is counted: $1.
SELECT lane, kind, count(*)::int AS runs,
       extract(epoch FROM clock() - min(due_at))::float8 AS seconds
FROM (SELECT lane, kind, due_at FROM execution WHERE status = 'queued' AND ready
      ORDER BY lane, turn_at, run_id LIMIT $1) AS due
GROUP BY lane, kind ORDER BY lane, kind;

-- name: overdue_work
-- What should have been moved on by a worker: leases that have run out, times that have come.
SELECT (SELECT count(*)::int FROM execution
        WHERE status = 'running' AND lease_until < clock()) AS lapsed,
       (SELECT extract(epoch FROM clock() - min(lease_until))::float8 FROM execution
        WHERE status = 'running' AND lease_until < clock()) AS lapsed_seconds,
       (SELECT count(*)::int FROM execution
        WHERE status = 'waiting' AND wake_at < (SELECT clock())) AS asleep,
       (SELECT extract(epoch FROM clock() - min(wake_at))::float8 FROM execution
        WHERE status = 'waiting' AND wake_at < (SELECT clock())) AS asleep_seconds,
       (SELECT count(*)::int FROM execution
        WHERE status = 'queued' AND NOT ready AND due_at < (SELECT clock())) AS delayed,
       (SELECT extract(epoch FROM clock() - min(due_at))::float8 FROM execution
        WHERE status = 'queued' AND NOT ready AND due_at < (SELECT clock())) AS delayed_seconds;

-- name: doubts_by_effect
SELECT kind, recovery, count(*)::int AS operations,
       extract(epoch FROM clock() - min(unknown_since))::float8 AS seconds
FROM operation WHERE state = 'unknown' GROUP BY kind, recovery ORDER BY kind, recovery;

-- name: overdue_call_count
-- Calls whose time and grace are over and that nobody has put in doubt. $1 grace.
SELECT count(*)::int AS calls FROM operation
WHERE state = 'submitting' AND call_until + $1::interval < clock();

-- name: announced_kinds
SELECT name FROM run_kind ORDER BY name;

-- name: schema_parts
-- What is in the engine's schema, of the sorts that its migrations make. An index that is not valid
-- is as good as none.
SELECT CASE c.relkind WHEN 'i' THEN 'index' WHEN 'v' THEN 'view' ELSE 'table' END AS sort,
       c.relname::text AS name
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_index x ON x.indexrelid = c.oid
WHERE n.nspname = 'earnest' AND c.relkind IN ('r', 'p', 'i', 'v') AND x.indisvalid IS NOT FALSE
UNION ALL
SELECT 'function', p.proname::text
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'earnest';

-- name: later_migrations
-- Migrations of the engine that are not this program's. $1 its newest number.
SELECT name FROM migration WHERE part = 'engine' AND number > $1 ORDER BY number;

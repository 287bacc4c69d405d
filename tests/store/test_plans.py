"""Every statement walks an index to what it wants, and to nothing else.

Explained on a filled and analysed database, under the settings that the engine's connections have:
once as a plan for whatever arguments come, and where arrays are asked for also as one for several
hundred of them, which is where the planner likes to change its mind.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from earnest.store.database import ENGINE_SETTINGS, Database, Tx
from earnest.store.statements import statements
from earnest.testing.databases import ThrowawayCluster
from tests.store.filled import fill

# Tables whose size grows with the work that was ever done.
LARGE = frozenset(
    """
    run execution past_attempt step event feed signal operation operation_move operation_lookup
    delivery inbox_entry outbox approval text_head text_delta artifact blob audit token
    sweep_seen sweep_difference sweep_sighting log_head log_line
    """.split()
)

# What reads more than it wants, and why that is right. An index named here holds only what is
# going on now: it is as small as that, and is walked from one end to the other.
WALKS: dict[str, tuple[str, ...]] = {
    "queued_in_flight": ("run_due", "what is queued, asked for by a check of new code"),
    "delayed_in_flight": ("run_delayed", "what is queued, asked for by a check of new code"),
    "running_in_flight": ("run_held", "what runs, asked for by a check of new code"),
    "due_by_kind": ("run_due", "what is due, by lane and kind; asked for by a doctor"),
    "doubts_by_effect": ("operation_unknown", "what is in doubt, asked for by a doctor"),
    "doubts_by_scope": ("operation_unknown", "what is in doubt, told to who looks at one scope's"),
    "gauge_unknown": ("operation_unknown", "what is in doubt, counted for the metrics"),
    "gauge_running": ("run_held", "what is in hand, counted for the metrics"),
    "gauge_approvals": ("approval_pending", "what waits for people, told by metrics"),
    "gauge_dead_letters": ("delivery_dead", "what waits for people, told by metrics"),
    "gauge_differences": ("sweep_difference_open", "what nobody has seen to, for the metrics"),
    "submitting_of_effect": ("operation_sending", "calls on their way, asked for by a sweep"),
    "unknown_of_effect": ("operation_unknown", "what is in doubt, asked for by a sweep"),
    "overdue_work": ("run_held", "leases are not indexed, so that a renewal stays cheap"),
    "sample_blobs": ("blob_pkey", "its two ends, asked for by a doctor"),
    "uncollected_blobs": ("blob_discarded", "bytes that wait to be removed; asked by a doctor"),
    "count_runs": ("execution", "how many there are of each status; asked for by people"),
    "lapsed_runs": ("run_held", "leases are not indexed, so that a renewal stays cheap"),
    "next_due": ("run_delayed", "its first entry is the answer"),
    "prune_instances": (
        "operation_sending",
        "operation_unknown",
        "run_held",
        "what is held and what is in doubt, now and then, for processes that ended long ago",
    ),
    "prune_texts": ("text_kept", "text that is kept, which it is for some days"),
    "overdue_call_count": ("operation_sending", "calls under way, asked for by a doctor"),
    "take_messages": ("outbox_next", "what no relay has spread yet: it leaves the table then"),
    "overdue_calls": ("operation_sending", "calls under way, of which any sender may be dead"),
}
# Where hardly anything was going on when the planner looked, it takes such an index for what it
# would find by key as well.
WALKS_AFTER_A_QUIET_DAY: dict[str, tuple[str, ...]] = {
    "attempts_of": ("run_held", "the attempt that runs is told by its execution"),
    "visible_attempts": ("run_held", "the attempt that runs is told by its execution"),
    "disable_sink": ("delivery_due", "what is pending, once for each sink that is gone"),
    "bury_instances": ("run_held", "once for each process that died"),
    "keep_arriving": ("blob_arriving", "uploads under way"),
    "store_blob": ("blob_arriving", "uploads under way"),
    "discard_arriving": ("blob_arriving", "uploads under way"),
    "give_up_arriving": ("blob_arriving", "uploads under way"),
    "forget_blobs": ("blob_discarded", "bytes that wait to be removed"),
}

# The statements of each claim, renewal and settle, and what each has to go by.
HOT = {
    "claim_runs": {"run_due", "run_pkey"},
    "renew_leases": {"execution_pkey", "past_attempt_pkey"},
    "succeed_runs": {"execution_pkey"},
    "write_facts": {"execution_pkey"},
    "write_texts": {"execution_pkey", "run_pkey"},
    "write_logs": {"execution_pkey"},
    "visible_logs": {"run_pkey", "log_line_pkey"},
    "text_standings": {"execution_pkey", "text_head_pkey", "event_pkey"},
    "texts_after": {"text_delta_pkey"},
    "visible_texts": {"run_pkey", "text_delta_pkey"},
    "lock_executions": {"execution_pkey"},
    "lock_with_parents": {"execution_pkey"},
    "ripen_runs": {"run_delayed", "execution_pkey"},
    "timed_runs": {"run_timed"},
    "expiring_runs": {"run_expiring"},
    "held_by": {"run_held"},
    "cancelled_among": {"run_held"},
    "take_due_questions": {"operation_asked_again", "operation_pkey"},
    "take_deliveries": {"sink_pkey", "delivery_due", "delivery_pkey"},
    "ack_delivery": {"delivery_pending"},
    "live_intent": {"operation_live"},
    "find_run_by_key": {"run_key"},
    "artifact_by_key": {"artifact_key"},
    "find_content": {"blob_content"},
    "expired_artifacts": {"artifact_expiring", "execution_pkey"},
    "expiring_approvals": {"approval_expiring"},
    "list_pending_approvals": {"approval_pending"},
    "expire_approvals": {"approval_of_run"},
    "cancel_approvals": {"approval_of_run", "execution_pkey"},
    "begin_operation": {"operation_pkey", "approval_pkey"},
    "list_unknown_operations": {"operation_unknown"},
    "operations_by_ref": {"operation_ref"},
    "oldest_begin": {"operation_submitted"},
    "is_feed_behind": {"event_written", "sequenced_pkey"},
    "append_to_feed": {
        *("event_written", "event_pkey", "run_pkey", "feed_pkey", "feed_of_run"),
        *("feed_pruned_pkey", "sequenced_pkey"),
    },
    "feed_after": {"feed_of_principal", "feed_pkey", "feed_pruned_pkey", "event_pkey"},
}

_EXAMPLES: dict[str, Any] = {
    "text": "scope-7",
    "uuid": uuid.UUID("018e0000-0000-7000-8000-000000000007"),
    "int4": 100,
    "int8": 100,
    "int2": 1,
    "bool": False,
    "bytea": b"",
    "jsonb": b"{}",
    "interval": timedelta(seconds=45),
    "timestamptz": datetime(2026, 1, 1, tzinfo=UTC),
}
_MANY = 300


@dataclass(frozen=True)
class Look:
    """One place where a plan goes into a table: by which index, and whether by its key."""

    table: str
    index: str
    by_key: bool


@pytest.fixture(scope="module", params=["busy", "quiet"])
def filled(request: pytest.FixtureRequest, cluster: ThrowawayCluster) -> Iterator[tuple[str, str]]:
    """What day it is, and where the database is."""
    url = asyncio.run(_filled_copy(cluster, quiet=request.param == "quiet"))
    yield request.param, url
    asyncio.run(cluster.drop(url))


async def _filled_copy(cluster: ThrowawayCluster, *, quiet: bool) -> str:
    url = await cluster.copy()
    async with Database(url, size=1, patience=5) as database, database.connection() as tx:
        await fill(tx, quiet=quiet)
    return url


async def test_no_statement_walks_over_what_it_does_not_want(filled: tuple[str, str]) -> None:
    day, url = filled
    allowed = WALKS | (WALKS_AFTER_A_QUIET_DAY if day == "quiet" else {})
    found = {}
    async with Database(url, size=1, patience=5) as database, database.connection() as tx:
        await _check_settings(tx)
        for name, text in statements().items():
            for plan in await _plans(tx, text):
                walked = {look.index for look in _looks(plan) if _is_walk(look)}
                if walked - {*allowed.get(name, ())[:-1]}:
                    found[name] = walked
    assert found == {}


async def test_hot_statements_go_by_the_indexes_made_for_them(filled: tuple[str, str]) -> None:
    day, url = filled
    async with Database(url, size=1, patience=5) as database, database.connection() as tx:
        for name, expected in HOT.items():
            for plan in await _plans(tx, statements()[name]):
                used = {look.index for look in _looks(plan) if look.table != "instance"}
                assert used == expected, (day, name)


async def test_a_page_of_runs_is_read_backwards_and_not_sorted(filled: tuple[str, str]) -> None:
    """A list is planned for its arguments: the filters that were not asked for fall away."""
    async with Database(filled[1], size=1, patience=5) as database, database.connection() as tx:
        arguments = ["scope-0", *[None] * 9, 50, None]
        plan = await _explained(tx, statements()["list_runs"], arguments)
    assert {node["Node Type"] for node in _nodes(plan)}.isdisjoint({"Sort", "Bitmap Heap Scan"})
    assert {look.index for look in _looks(plan)} == {"run_pkey", "execution_pkey"}


def test_every_exception_names_a_statement() -> None:
    assert {*WALKS, *WALKS_AFTER_A_QUIET_DAY, *HOT} <= set(statements())


async def _check_settings(tx: Tx) -> None:
    for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"):
        assert await tx.fetchval("SELECT current_setting($1)", name) == ENGINE_SETTINGS[name]


def _is_walk(look: Look) -> bool:
    return look.table in LARGE and not look.by_key


# ---- plans --------------------------------------------------------------------------------------


async def _plans(tx: Tx, text: str) -> list[dict[str, Any]]:
    """The plan for any arguments; and where there are arrays, the one for many elements."""
    types = [parameter.name for parameter in (await tx.prepare(text)).get_parameters()]
    plans = [await _generic(tx, text, len(types))]
    if any(name.endswith("[]") for name in types):
        plans.append(await _explained(tx, text, [_example(name) for name in types]))
    return plans


def _example(name: str) -> Any:
    if not name.endswith("[]"):
        return _EXAMPLES[name]
    if name == "uuid[]":
        return [uuid.UUID(f"018e0000-0000-7000-8000-{n:012x}") for n in range(1, _MANY + 1)]
    return [_EXAMPLES[name.removesuffix("[]")]] * _MANY


async def _generic(tx: Tx, text: str, count: int) -> dict[str, Any]:
    arguments = f"({', '.join(['NULL'] * count)})" if count else ""
    await tx.execute("SET plan_cache_mode = force_generic_plan")
    await tx.execute(f"PREPARE planned AS {text}")
    try:
        (row,) = await tx.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE planned{arguments}")
    finally:
        await tx.execute("DEALLOCATE planned; RESET plan_cache_mode")
    return _plan(row)


async def _explained(tx: Tx, text: str, arguments: list[Any]) -> dict[str, Any]:
    (row,) = await tx.fetch(f"EXPLAIN (FORMAT JSON) {text}", *arguments)
    return _plan(row)


def _plan(row: asyncpg.Record) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(row[0])[0]["Plan"]
    return plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _looks(plan: dict[str, Any]) -> Iterator[Look]:
    """A bitmap's table is named by the node above its index."""
    for node in _nodes(plan):
        table = node.get("Relation Name", "")
        match node["Node Type"]:
            case "Seq Scan":
                yield Look(table, table, by_key=False)
            case "Index Scan" | "Index Only Scan":
                yield Look(table, node["Index Name"], "Index Cond" in node)
            case "Bitmap Heap Scan":
                for below in _nodes(node):
                    if below["Node Type"] == "Bitmap Index Scan":
                        yield Look(table, below["Index Name"], "Index Cond" in below)

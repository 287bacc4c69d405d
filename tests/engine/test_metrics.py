"""What a process counts of its work, and what is counted in the database when somebody asks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from earnest import App, Context
from earnest.engine.inspection import gauging
from earnest.engine.inspection.exposing import expose
from earnest.engine.inspection.gauging import Gauging
from earnest.engine.process import metrics
from earnest.engine.process.metrics import DURATIONS, Counter, Histogram, Metrics, Named
from earnest.engine.process.scopes import ensure_scope
from earnest.store import gauges
from earnest.store.database import Database
from earnest.testing.clock import ManualClock
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Provider, shop

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def told(bench: Bench, **kept: float) -> Samples:
    """What is exposed, as Prometheus reads it."""
    data = await expose(bench.engine.metrics, Gauging(bench.engine, **kept))
    return read(data)


def read(data: bytes) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(data.decode())
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


async def test_what_a_worker_does_is_counted(make_bench: MakeBench) -> None:
    provider = Provider()
    bench = make_bench(shop(provider))
    await bench.done("buy", {"by": "hold"})
    provider.refuses()
    await bench.done("buy", {"by": "hold"})
    provider.drops(does=True)
    await bench.done("buy", {"by": "hold"})
    found = await told(bench)
    assert of(found, "earnest_runs_claimed_total", kind="buy", lane="default") == 3
    for outcome in ("succeeded", "failed", "unknown"):
        ended = of(found, "earnest_attempts_ended_total", kind="buy", outcome=outcome)
        assert ended == 1, outcome
    for outcome in ("submitted", "released", "unknown"):
        calls = of(found, "earnest_operation_calls_total", effect="test.hold", outcome=outcome)
        assert calls == 1, outcome
    assert of(found, "earnest_operation_call_seconds_count", effect="test.hold") == 3
    assert of(found, "earnest_settle_seconds_count") == 3
    assert (of(found, "earnest_claim_seconds_count") or 0) >= 3
    assert of(found, "earnest_leases_lost_total") == 0


async def test_lost_leases_and_refused_writes_are_counted(make_bench: MakeBench) -> None:
    """P5."""
    app = App("slow")

    @app.run("slow", max_attempts=1)
    async def slow(ctx: Context, value: None) -> None:
        await bench.execute("UPDATE execution SET owner_token = gen_random_uuid()")
        await ctx.emit("it.happened", {})

    bench = make_bench(app)
    await bench.submit("slow")
    await bench.worker._claim_all()
    await asyncio.wait(set(bench.worker._attempts))
    found = await told(bench)
    assert of(found, "earnest_fenced_writes_total") == 1
    assert of(found, "earnest_leases_lost_total") == 1
    assert of(found, "earnest_attempts_ended_total", kind="slow", outcome="fenced") == 1


async def test_doubts_are_told_with_their_age(make_bench: MakeBench, clock: ManualClock) -> None:
    """P3."""
    provider = Provider()
    bench = make_bench(shop(provider))
    for seconds in (0, 90):
        await clock.advance(seconds=seconds)
        provider.drops(does=True)
        await bench.done("buy", {"by": "hold"})
    await clock.advance(seconds=30)
    found = await told(bench)
    assert of(found, "earnest_operations_unknown", effect="test.hold") == 2
    assert of(found, "earnest_operations_unknown_oldest_seconds", effect="test.hold") == 120


async def test_queues_are_told_by_lane_with_their_age(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    app = App("lanes")
    for lane in ("fast", "slow"):
        app.run(f"in.{lane}", lane=lane)(idle)
    bench = make_bench(app)
    for _ in range(2):
        await bench.submit("in.fast")
        await clock.advance(seconds=10)
    await bench.submit("in.slow")
    await bench.claim(lane="slow")
    found = await told(bench)
    assert of(found, "earnest_runs_queued", lane="fast") == 2
    assert of(found, "earnest_runs_queued_oldest_seconds", lane="fast") == 20
    assert of(found, "earnest_runs_queued", lane="slow") is None
    assert of(found, "earnest_runs_running", lane="slow") == 1


async def idle(ctx: Context, value: None) -> None:
    pass


async def test_what_waits_for_people_is_told(make_bench: MakeBench) -> None:
    app = App("asks")

    @app.run("ask")
    async def ask(ctx: Context, value: None) -> None:
        await ctx.approve("this", {"amount": 1})

    bench = make_bench(app)
    await bench.done("ask")
    await ensure_scope(bench.engine, SCOPE, by="olga")
    await bench.execute(
        "INSERT INTO sink (scope_id, sink_id, kind, address, types, state, position, created_by, "
        "created_at) VALUES ($1, gen_random_uuid(), 'nats', 'a', '{*}', 'active', 0, 'a', clock())",
        SCOPE,
    )
    await bench.execute(
        "INSERT INTO delivery (scope_id, sink_id, delivery_id, message_id, type, payload, "
        "happened_at, state, due_at, created_at, ended_at) SELECT scope_id, sink_id, "
        "gen_random_uuid(), gen_random_uuid(), 't', '{}', clock(), 'dead', clock(), clock(), "
        "clock() FROM sink"
    )
    await bench.execute(
        "INSERT INTO sweep_difference (scope_id, difference_id, effect, kind, why, subject, "
        "happened_at, state, found_at, seen_at) VALUES ($1, gen_random_uuid(), 'a.b', "
        "'effect_without_record', 'no_operation', 'r', clock(), 'open', clock(), clock())",
        SCOPE,
    )
    await bench.execute("INSERT INTO artifact_room (scope_id, used_bytes) VALUES ($1, 77)", SCOPE)
    found = await told(bench)
    assert of(found, "earnest_approvals_pending") == 1
    assert of(found, "earnest_dead_letters") == 1
    assert of(found, "earnest_artifact_bytes") == 77
    labels = {"effect": "a.b", "kind": "effect_without_record"}
    assert of(found, "earnest_sweep_differences_open", **labels) == 1


async def test_the_database_is_counted_once_in_a_while(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P17: however many ask."""
    bench, asked = make_bench(App("none")), 0
    counted = gauges.read

    async def counting(database: Database) -> Any:
        nonlocal asked
        asked += 1
        return await counted(database)

    monkeypatch.setattr(gauges, "read", counting)
    own = Gauging(bench.engine, kept=3600)
    await asyncio.gather(*(expose(bench.engine.metrics, own) for _ in range(10)))
    assert asked == 1
    fresh = Gauging(bench.engine, kept=0)
    await expose(bench.engine.metrics, fresh)
    await expose(bench.engine.metrics, fresh)
    assert asked == 3


async def test_a_database_that_is_away_is_told_and_hides_nothing_else(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(App("none"))
    bench.engine.metrics.leases_lost.add()

    async def away(database: Database) -> Any:
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(gauges, "read", away)
    found = await told(bench)
    assert of(found, "earnest_database_up") == 0
    assert of(found, "earnest_leases_lost_total") == 1
    assert of(found, "earnest_approvals_pending") is None


# ---- counting ----------------------------------------------------------------------------------


def test_labels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """P21: whatever there is more than so many of is counted under one name."""
    monkeypatch.setattr(metrics, "MOST_SERIES", 3)
    counter = Counter(Named("n", "h", ("a", "b")))
    for number in range(10):
        counter.add(str(number), "x")
    assert counter.read() == {
        ("0", "x"): 1, ("1", "x"): 1, ("2", "x"): 1, ("other", "other"): 7,
    }  # fmt: skip


def test_threads_lose_no_count() -> None:
    counter = Counter(Named("n", "h"))

    def count() -> None:
        for _ in range(2000):
            counter.add()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read() == {(): 8000}


def test_a_histogram_cumulates() -> None:
    histogram = Histogram(Named("n", "h"))
    for seconds in (0.001, 0.002, 100.0):
        histogram.observe(seconds)
    [(labels, durations)] = histogram.read().items()
    counts = dict(durations.cumulated())
    assert labels == ()
    assert (counts["0.001"], counts["0.0025"], counts["30.0"], counts["+Inf"]) == (1, 2, 2, 3)
    assert len(counts) == len(DURATIONS) + 1


def test_no_metric_tells_people_scopes_or_ids_apart() -> None:
    """P21."""
    own = Metrics()
    counters, histograms = own.counters(), own.histograms()
    named = [*(one.named for one in counters), *(one.named for one in histograms)]
    labels = {label for one in (*named, *gauging.GAUGES.values()) for label in one.labels}
    assert labels == {"kind", "lane", "effect", "outcome", "sink"}

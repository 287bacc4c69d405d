"""`/metrics`: what is exposed, who may read it, and the page that lists it."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from earnest.doors.api.metrics import TOKEN
from earnest.engine.inspection.gauging import DATABASE_UP, GAUGES, STREAMS_OPEN
from earnest.engine.process.metrics import Counter, Metrics, Named
from tests.doors.api.outside import Outside
from tests.doors.api.samples import a_run_in_doubt

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


async def test_metrics_are_read_without_a_token_and_hold_nothing_of_a_tenant(
    outside: Outside,
) -> None:
    """P21."""
    run_id = await a_run_in_doubt(outside)
    answer = await outside.get("/metrics", None)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"earnest_operations_unknown", "earnest_streams_open", "earnest_database_up"} <= names
    assert "process_resident_memory_bytes" in names
    assert 'earnest_operations_unknown{effect="shop.opaque"} 1.0' in answer.text
    for word in (run_id, "demo", "ann", "20.00"):
        assert word not in answer.text


async def test_a_deployment_may_ask_for_a_token(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "so-secret")
    assert (await outside.get("/metrics", None)).status_code == 401
    assert (await outside.get("/metrics", "admin")).status_code == 401
    given = {"Authorization": "Bearer so-secret"}
    assert (await outside.get("/metrics", None, headers=given)).status_code == 200


# ---- the page ----------------------------------------------------------------------------------


def test_the_page_lists_every_metric() -> None:
    """To write it anew, see its last line."""
    assert table() in PAGE.read_text("utf-8")


def test_every_exposed_name_is_on_the_page() -> None:
    page = PAGE.read_text("utf-8")
    assert all(f"`{named.name}`" in page for named, _ in every())


def every() -> list[tuple[Named, str]]:
    own = Metrics()
    counted = [(one.named, "counter") for one in own.counters()]
    taken = [(one.named, "histogram") for one in own.histograms()]
    assert all(isinstance(one, Counter) for one in own.counters())
    gauges = [(one, "gauge") for one in (DATABASE_UP, STREAMS_OPEN, *GAUGES.values())]
    return [*gauges, *counted, *taken]


def table() -> str:
    rows = [
        f"| `{named.name}` | {kind} | {', '.join(named.labels)} | {named.help} |"
        for named, kind in every()
    ]
    return "\n".join(["| metric | is a | by | tells |", "| --- | --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    before, _, rest = PAGE.read_text("utf-8").partition("| metric |")
    after = rest.partition("\n\n")[2]
    PAGE.write_text(f"{before}{table()}\n{after}", "utf-8")

"""`earnest sweeps`: both differences at the simulator's banks, made here or by a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from earnest.testing.simulator import Simulator, running_simulator
from tests.doors.cli.program import Outcome, Program

REFUND = '{"order_id": "%s", "amount": "20.00", "bank": "%s"}'


@pytest.fixture(scope="module")
def own_simulator() -> Iterator[Simulator]:
    with running_simulator() as own:
        yield own


@pytest.fixture
def shop(here: Program, own_simulator: Simulator) -> Program:
    """The program with a simulator of which everything is known."""
    own_simulator.forget()
    return here.on(EARNEST_SIMULATOR_URL=own_simulator.url)


def plant(simulator: Simulator, bank: str, operation_id: str) -> str:
    body = {"operation_id": operation_id, "order_id": "planted", "amount": "1.00"}
    return str(httpx2.post(f"{simulator.url}/bank/{bank}/refunds", json=body).json()["id"])


def listed(simulator: Simulator, bank: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = httpx2.get(f"{simulator.url}/bank/{bank}/refunds").json()["items"]
    return items


def swept(shop: Program, bank: str, *more: str) -> Outcome:
    return shop.outside.run("sweeps", "run", f"bank.{bank}.refund", *more)


@pytest.mark.parametrize("bank", ["keyed", "queryable", "opaque"])
def test_what_is_in_order_at_a_bank_is_no_difference(
    shop: Program, own_simulator: Simulator, bank: str
) -> None:
    with shop.started("worker"):
        shop.good("runs", "submit", "demo.refund", REFUND % ("order-1", bank), "--watch")
    done = swept(shop, bank, "--json")
    assert done.code == 0, done.out
    assert done.json["state"] == "complete"
    assert (done.json["counts"]["listed"], done.json["counts"]["matched"]) == (1, 1)
    planted = plant(own_simulator, bank, "op_planted")
    done = swept(shop, bank, "--json")
    assert done.code == 1, "something is open"
    [found] = done.json["differences"]
    assert (found["kind"], found["external_ref"], found["state"]) == (
        "effect_without_record", planted, "open",
    )  # fmt: skip
    assert found["listed_id"] == (None if bank == "opaque" else "op_planted")
    shown = shop.good("sweeps", "show", done.json["id"]).out
    assert planted in shown
    assert "effect_without_record" in shown
    [open_] = shop.good("sweeps", "differences", "--json").json["items"]
    note = ("--note", "made at the counter")
    closed = shop.good("sweeps", "close", open_["id"], *note, "--json").json
    assert (closed["state"], closed["note"]) == ("closed", "made at the counter")
    assert swept(shop, bank).code == 0
    assert shop.good("sweeps", "differences", "--json").json["items"] == []
    assert len(shop.good("sweeps", "list", "--json").json["items"]) == 3


def test_a_record_whose_effect_the_bank_lost_is_found(
    shop: Program, own_simulator: Simulator, database_url: str
) -> None:
    with shop.started("worker"):
        shop.good("runs", "submit", "demo.refund", REFUND % ("order-2", "queryable"), "--watch")
    [made] = listed(own_simulator, "queryable")
    httpx2.delete(f"{own_simulator.url}/bank/queryable/refunds/{made['id']}").raise_for_status()
    assert swept(shop, "queryable").code == 0, "the bank's list may lag for five seconds"
    age_operations(database_url)
    done = swept(shop, "queryable", "--json")
    [found] = done.json["differences"]
    assert (found["kind"], found["why"]) == ("record_without_effect", "not_listed")
    assert done.json["counts"]["asked"] == 1
    assert found["operation_id"] == made["operation_id"]
    shown = shop.good("operations", "show", found["operation_id"]).out
    assert "record_without_effect" in shown


def age_operations(database_url: str) -> None:
    """As if it had been some time ago."""
    import asyncio

    import asyncpg

    async def age() -> None:
        connection = await asyncpg.connect(database_url)
        await connection.execute(
            "UPDATE earnest.operation SET first_begun_at = first_begun_at - interval '6 s', "
            "submitted_at = submitted_at - interval '6 s'"
        )
        await connection.close()

    asyncio.run(age())


def test_a_worker_makes_it_where_the_effect_is_not_known(
    shop: Program, own_simulator: Simulator
) -> None:
    planted = plant(own_simulator, "keyed", "op_planted")
    bare = shop.on(EARNEST_APP="")
    assert "no effect 'bank.keyed.refund' is known here" in bare.refused(
        1, "sweeps", "run", "bank.keyed.refund"
    )
    with shop.started("worker"):
        done = swept(bare, "keyed", "--json")
        assert done.json["differences"][0]["external_ref"] == planted


def test_what_cannot_be_is_refused(shop: Program) -> None:
    line = shop.refused(2, "sweeps", "run", "bank.keyed.refund", "--since", "yesterday")
    assert "--since is a day or a time" in line
    line = shop.refused(1, "sweeps", "run", "bank.keyed.refund", "--since", "2999-01-01")
    assert "lies in the future" in line
    assert "no such sweep" in shop.refused(1, "sweeps", "show", "sweep_nothing")
    assert "no such difference" in shop.refused(1, "sweeps", "close", "diff_1", "--note", "n")

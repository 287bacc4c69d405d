"""Requests from SQL that are refused: in one line that says what to do, and nothing is stored."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from earnest.domain import canonical
from tests.sql_shop import SqlShop

MOST = 256 * 1024
INVALID = "22023"

REFUSED: dict[str, tuple[str, str]] = {
    "unknown kind": (
        "'demo', 'order.shop', '{}'",
        (
            "no run kind 'order.shop' is announced; known are: echo, order.ship, report.make. A "
            "kind is announced when a worker that has it starts"
        ),
    ),
    "no kind": (
        "'demo', NULL, '{}'",
        (
            "no run kind NULL is announced; known are: echo, order.ship, report.make. A kind is "
            "announced when a worker that has it starts"
        ),
    ),
    "no input": (
        "'demo', 'echo', NULL",
        "the input is NULL; an empty one is 'null' or '{}'",
    ),
    "unknown lane": (
        "'demo', 'echo', '{}', lane => 'slow'",
        "there is no lane 'slow'; there are: default, reports",
    ),
    "priority": (
        "'demo', 'echo', '{}', priority => 1001",
        "priority is a whole number from -1000 to 1000",
    ),
    "empty key": ("'demo', 'echo', '{}', ''", "an idempotency key has 1 to 255 characters"),
    "long key": (
        "'demo', 'echo', '{}', repeat('k', 256)",
        "an idempotency key has 1 to 255 characters",
    ),
    "never": (
        "'demo', 'echo', '{}', not_before => 'infinity'",
        "not_before is a time before the year 9999",
    ),
    "too late": (
        "'demo', 'echo', '{}', not_before => '10000-01-01'",
        "not_before is a time before the year 9999",
    ),
    "labels that are no object": (
        "'demo', 'echo', '{}', labels => '[\"gift\"]'",
        'labels are an object of texts, such as {"order": "17"}',
    ),
    "a label that is no text": (
        "'demo', 'echo', '{}', labels => '{\"order\": 17}'",
        "at most 32 labels are taken: names of 1 to 100 characters, texts of at most 200",
    ),
    "a long label": (
        "'demo', 'echo', '{}', labels => jsonb_build_object('order', repeat('x', 201))",
        "at most 32 labels are taken: names of 1 to 100 characters, texts of at most 200",
    ),
    "a label without a name": (
        "'demo', 'echo', '{}', labels => '{\"\": \"x\"}'",
        "at most 32 labels are taken: names of 1 to 100 characters, texts of at most 200",
    ),
    "many labels": (
        (
            "'demo', 'echo', '{}', labels => (SELECT jsonb_object_agg(n::text, '') "
            "FROM generate_series(1, 33) AS n)"
        ),
        "at most 32 labels are taken: names of 1 to 100 characters, texts of at most 200",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_request_that_cannot_be_is_refused_in_one_line(shop: SqlShop, case: str) -> None:
    arguments, message = REFUSED[case]
    async with shop.connected() as connection:
        with pytest.raises(asyncpg.InvalidParameterValueError) as refusal:
            await connection.fetchval(f"SELECT earnest.submit({arguments})")
    assert (refusal.value.sqlstate, str(refusal.value)) == (INVALID, message)
    assert await shop.count() == 0


async def test_what_just_fits_is_taken(shop: SqlShop) -> None:
    async with shop.connected() as connection:
        run_id = await connection.fetchval(
            """SELECT earnest.submit('demo', 'echo', 'null', repeat('é', 255), 'reports', -1000,
                '9998-12-31', (SELECT jsonb_object_agg(repeat(n::text, 50), repeat('x', 200))
                               FROM generate_series(10, 41) AS n))"""
        )
    run = await shop.find(run_id)
    assert (run.lane, run.priority, len(run.labels)) == ("reports", -1000, 32)
    assert run.due_at is not None


async def test_null_stands_for_what_is_not_given(shop: SqlShop) -> None:
    async with shop.connected() as connection:
        run_id = await connection.fetchval(
            "SELECT earnest.submit('demo', 'echo', '1', NULL, NULL, NULL, NULL, NULL)"
        )
    run = await shop.find(run_id)
    assert (run.lane, run.priority, run.labels) == ("default", 0, {})


# ---- how large an input may be -----------------------------------------------------------------


def of_size(size: int, shape: str) -> Any:
    """A value of exactly so many bytes of JSON without blanks."""
    value: Any = {
        "one text": "",
        "many numbers": [1] * 80_000 + [""],
        "many members": {f"é{n}": {"a, b": n} for n in range(8000)} | {"rest": ""},
        "texts like JSON": ['{"a", "b": [1, 2]}, \\"'] * 3000 + [""],
    }[shape]
    filling = "x" * (size - len(canonical.encode(value)))
    if isinstance(value, str):
        return filling
    value["rest" if isinstance(value, dict) else -1] = filling
    return value


SHAPES = pytest.mark.parametrize(
    "shape", ["one text", "many numbers", "many members", "texts like JSON"]
)


@SHAPES
async def test_an_input_may_be_as_large_as_at_the_other_doors(shop: SqlShop, shape: str) -> None:
    """PostgreSQL prints jsonb with blanks; they do not count."""
    value = of_size(MOST, shape)
    run_id = await shop.submit_sql("echo", value)
    assert (await shop.find(run_id)).input == value
    await shop.submit("echo", value)


@SHAPES
async def test_an_input_of_one_byte_more_is_refused(shop: SqlShop, shape: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as refusal:
        await shop.submit_sql("echo", of_size(MOST + 1, shape))
    assert str(refusal.value) == (
        "the input has 262145 bytes; at most 262144 are taken: store larger things as artifacts "
        "and pass their ids"
    )


# ---- what PostgreSQL could keep and Python could not read --------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 101 + "]" * 101, "the input is nested deeper than 100 levels"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "the input is nested deeper than 100 levels"),
        ("1e308", "the input has a number beyond 1e308"),
        ("[1, {\"a\": [-1e4000, 2]}]", "the input has a number beyond 1e308"),
        ("1" + "0" * 320 + ".5", "the input has a number beyond 1e308"),
    ],
)  # fmt: skip
async def test_what_no_worker_could_read_is_refused(shop: SqlShop, text: str, message: str) -> None:
    """It would be in the way of everything that is claimed together with it."""
    async with shop.connected() as connection:
        with pytest.raises(asyncpg.InvalidParameterValueError) as refusal:
            await connection.fetchval("SELECT earnest.submit('demo', 'echo', $1)", text)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100 + "]" * 100,
        "[9e307, -9e307, 1e-400]",
        json.dumps("9" * 5000),
        '{"' + "1" * 5000 + '": 1.5}',
        "0." + "1" * 10_000,
    ],
)
async def test_what_is_taken_can_be_run(shop: SqlShop, text: str) -> None:
    async with shop.connected() as connection:
        run_id = await connection.fetchval("SELECT earnest.submit('demo', 'echo', $1)", text)
    assert await shop.worker.drain_once() == 1
    assert (await shop.find(run_id)).status == "succeeded"

"""P7 from SQL: the same principal, key and request give the same run. The requests of Python here
are of those whose sent form nobody knows; all doors are in `tests/doors/sql`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import asyncpg
import pytest
from pydantic import AfterValidator

from earnest import App, Context
from earnest.domain import ids
from earnest.domain.errors import IdempotencyConflict
from earnest.engine.process import announcing, database_roles, principals
from earnest.engine.process.engine import Engine
from earnest.engine.runs import cancelling, retrying, submitting
from earnest.engine.runs.submitting import Request
from tests.sql_shop import PRINCIPAL, SCOPE, SqlShop, submitted
from tests.store.test_sql_submit import until_somebody_waits

TAKEN = "RK409"


async def refused(shop: SqlShop, kind: str, input: Any, key: str) -> asyncpg.PostgresError:
    with pytest.raises(asyncpg.PostgresError) as refusal:
        await shop.submit_sql(kind, input, key)
    return refusal.value


# ---- from SQL alone ----------------------------------------------------------------------------


async def test_the_same_key_and_request_give_the_same_run(shop: SqlShop) -> None:
    first = await shop.submit_sql("order.ship", {"order": 17, "gift": True}, "order-17")
    assert await shop.submit_sql("order.ship", {"gift": True, "order": 17.0}, "order-17") == first
    await shop.worker.drain_once()
    assert await shop.submit_sql("order.ship", {"order": 17, "gift": True}, "order-17") == first
    assert await shop.count() == 1


@pytest.mark.parametrize(
    ("kind", "input"), [("order.ship", {"order": 18}), ("echo", {"order": 17}), ("echo", None)]
)
async def test_the_same_key_with_another_request_is_a_conflict(
    shop: SqlShop, kind: str, input: Any
) -> None:
    first = await shop.submit_sql("order.ship", {"order": 17}, "order-17")
    refusal = await refused(shop, kind, input, "order-17")
    assert refusal.sqlstate == TAKEN
    assert str(refusal) == (
        f"the key 'order-17' was used for another request ({first}); use a new key, or send the "
        "same request again"
    )
    assert await shop.count() == 1


async def test_a_conflict_is_no_violation_that_others_handle(shop: SqlShop) -> None:
    """`except IntegrityError: pass` is how programs skip what they have already; a conflict must
    not go that way."""
    await shop.submit_sql("echo", 1, "k")
    refusal = await refused(shop, "echo", 2, "k")
    assert not isinstance(refusal, asyncpg.IntegrityConstraintViolationError)


async def test_without_a_key_every_call_makes_a_run(shop: SqlShop) -> None:
    assert await shop.submit_sql("echo", 1) != await shop.submit_sql("echo", 1)


async def test_many_at_once_make_one_run(shop: SqlShop) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(shop.submit_sql("echo", 1, "k")) for _ in range(20)]
    assert len({task.result() for task in tasks}) == 1
    assert await shop.count() == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_a_key_in_an_open_transaction_is_waited_for(shop: SqlShop, commits: bool) -> None:
    async with shop.connected() as one, shop.connected() as other:
        transaction = one.transaction()
        await transaction.start()
        first = await submitted(one, "echo", 1, "k")
        waiting = asyncio.create_task(submitted(other, "echo", 1, "k"))
        await until_somebody_waits(shop)
        await (transaction.commit() if commits else transaction.rollback())
        assert (await waiting == first) == commits
    assert await shop.count() == 1


async def test_a_key_belongs_to_the_principal_and_not_to_the_role(shop: SqlShop) -> None:
    role = await shop.add_role()
    await database_roles.map_role(shop.engine, role, SCOPE, PRINCIPAL)
    first = await shop.submit_sql("echo", 1, "k")
    async with shop.connected(role) as connection:
        assert await submitted(connection, "echo", 1, "k") == first


async def test_two_principals_use_the_same_key_beside_each_other(shop: SqlShop) -> None:
    role = await shop.add_role()
    await principals.ensure_principal(shop.engine, SCOPE, "ann", ["member"])
    await database_roles.map_role(shop.engine, role, SCOPE, "ann")
    first = await shop.submit_sql("echo", 1, "k")
    async with shop.connected(role) as connection:
        second = await submitted(connection, "echo", 2, "k")
    assert second != first
    assert (await shop.find(second)).principal_id == "ann"


# ---- first from SQL, then through another door -------------------------------------------------


@pytest.mark.parametrize("sent", [{"order": 17}, {"order": 17, "gift": False}, {"order": "17"}])
async def test_python_finds_the_run_that_sql_made(shop: SqlShop, sent: Any) -> None:
    """What SQL stored is compared as the kind's type would have written it, defaults and all."""
    by_sql = await shop.submit_sql("order.ship", sent, "order-17")
    request = Request("order.ship", {"order": 17}, "order-17")
    again = await submitting.submit(shop.engine, SCOPE, PRINCIPAL, request)
    assert (ids.show("run", again.run.run_id), again.replayed) == (by_sql, True)
    assert await submitting.submit_many(
        shop.engine, SCOPE, PRINCIPAL, "order.ship", [sent], ["order-17"]
    ) == [again.run.run_id]


@pytest.mark.parametrize(
    ("kind", "input"),
    [("order.ship", {"order": 18}), ("order.ship", {"order": 17, "gift": True}), ("echo", None)],
)
async def test_another_request_from_python_is_a_conflict_with_the_run_that_sql_made(
    shop: SqlShop, kind: str, input: Any
) -> None:
    by_sql = await shop.submit_sql("order.ship", {"order": 17}, "order-17")
    with pytest.raises(IdempotencyConflict) as refusal:
        await shop.submit(kind, input, "order-17")
    assert refusal.value.fields == {"run_id": by_sql}


@pytest.mark.parametrize("sent", [16, 17])
async def test_what_its_type_would_write_and_what_it_wrote_are_both_the_same_input(
    shop: SqlShop, make_engine: Callable[..., Engine], sent: int
) -> None:
    """This type writes a number that it would not write for that number."""
    app = App("counting")

    @app.run("count")
    async def count(ctx: Context, value: Annotated[int, AfterValidator(lambda n: n + 1)]) -> None:
        pass

    shop.engine = make_engine(app)
    await announcing.announce(shop.engine)
    by_sql = await shop.submit_sql("count", sent, "k")
    assert ids.show("run", (await shop.submit("count", 16, "k")).run_id) == by_sql


async def test_an_input_from_sql_that_does_not_fit_is_like_no_request_from_python(
    shop: SqlShop,
) -> None:
    await shop.submit_sql("order.ship", {"order": "seventeen"}, "order-17")
    with pytest.raises(IdempotencyConflict):
        await shop.submit("order.ship", {"order": 17}, "order-17")


async def test_true_and_one_are_not_the_same_input(shop: SqlShop) -> None:
    """They are equal in Python, and are not in JSON."""
    await shop.submit_sql("echo", {"value": True}, "k")
    with pytest.raises(IdempotencyConflict):
        await shop.submit("echo", {"value": 1}, "k")
    await shop.submit("echo", {"value": True}, "k")


# ---- first through another door, then from SQL -------------------------------------------------


@pytest.mark.parametrize("sent", [{"order": 17}, {"order": 17, "gift": False}])
async def test_sql_finds_the_run_that_python_made(shop: SqlShop, sent: Any) -> None:
    """Python stored the defaults too; SQL knows them from the announced schema."""
    run = await shop.submit("order.ship", {"order": 17}, "order-17")
    assert await shop.submit_sql("order.ship", sent, "order-17") == ids.show("run", run.run_id)


@pytest.mark.parametrize(
    ("kind", "input"),
    [("order.ship", {"order": 18}), ("order.ship", {"order": 17, "gift": True}), ("echo", None)],
)
async def test_another_request_from_sql_is_a_conflict_with_the_run_that_python_made(
    shop: SqlShop, kind: str, input: Any
) -> None:
    await shop.submit("order.ship", {"order": 17}, "order-17")
    assert (await refused(shop, kind, input, "order-17")).sqlstate == TAKEN


async def test_the_key_of_a_persons_retry_is_not_the_key_of_a_submit(shop: SqlShop) -> None:
    """A retry has the kind and the input of the run that it retries, and is another request."""
    run = await shop.submit("order.ship", {"order": 17})
    await cancelling.cancel(shop.engine, SCOPE, run.run_id, PRINCIPAL)
    await retrying.retry(shop.engine, SCOPE, run.run_id, by=PRINCIPAL, key="again")
    assert (await refused(shop, "order.ship", {"order": 17}, "again")).sqlstate == TAKEN


async def test_the_key_of_a_submit_from_sql_is_not_the_key_of_a_retry(shop: SqlShop) -> None:
    run_id = await shop.submit_sql("order.ship", {"order": 17}, "k")
    run = await shop.find(run_id)
    await cancelling.cancel(shop.engine, SCOPE, run.run_id, PRINCIPAL)
    with pytest.raises(IdempotencyConflict):
        await retrying.retry(shop.engine, SCOPE, run.run_id, by=PRINCIPAL, key="k")

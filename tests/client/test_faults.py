"""The client while servers are killed and connections break: nothing is done twice, nothing is
left out, and what was begun comes to its end (P7, P8, P9, P23)."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import pytest

from earnest import Client
from earnest.client.values import Event
from earnest.domain.errors import IdempotencyConflict
from earnest.testing.simulator import Simulator
from tests.client.cutting import CuttingWay
from tests.client.house import House

pytestmark = pytest.mark.fault

RUNS = "SELECT count(*) FROM earnest.run"
ECHO = {"message": "m"}
T = TypeVar("T")
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
Open = Callable[..., Client]


@pytest.fixture
async def open_client(house: House) -> AsyncIterator[Open]:
    """Clients of the member, which wait out a restart."""
    opened: list[Client] = []

    def made(url: str = "", who: str = "member") -> Client:
        client = Client(url or house.url, house.tokens[who], patience=60)
        opened.append(client)
        return client

    yield made
    for client in opened:
        await client.close()


# ---- submitting --------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["submit.before", "submit.after"])
async def test_fifty_at_once_with_one_key_and_a_crash_are_one_run(
    house: House, open_client: Open, point: str
) -> None:
    """P7, and the server dies in the middle of the first one: before it is stored, or after it is
    and before anybody is told."""
    crashing = house.program
    house.program = crashing.on(EARNEST_CRASH_AT=point)
    house.start("--no-worker")
    client = open_client()
    submits = [asyncio.create_task(client.submit("demo.echo", ECHO, key="one")) for _ in range(50)]
    await asyncio.to_thread(house.died)
    house.program = crashing
    await asyncio.to_thread(house.start, "--no-worker")
    runs = await asyncio.gather(*submits)
    assert len({run.id for run in runs}) == 1
    assert await house.count(RUNS) == 1
    again = await client.submit("demo.echo", ECHO, key="one")
    assert again.id == runs[0].id, "the key can be used at once"
    with pytest.raises(IdempotencyConflict):
        await client.submit("demo.echo", {"message": "other"}, key="one")
    assert await house.count(RUNS) == 1


async def test_a_server_that_is_killed_under_many_submits_loses_and_doubles_none(
    house: House, open_client: Open
) -> None:
    house.start("--no-worker")
    client = open_client()
    done: asyncio.Queue[str] = asyncio.Queue()

    async def submit(number: int) -> str:
        run = await client.submit("demo.echo", {"message": str(number)})
        done.put_nowait(run.id)
        return run.id

    submits = [asyncio.create_task(submit(number)) for number in range(200)]
    for _ in range(20):
        await done.get()
    await house.restart(kill=True)
    made = await asyncio.gather(*submits)
    assert len(set(made)) == 200
    assert await house.count(RUNS) == 200


@pytest.mark.parametrize("seed", SEEDS)
async def test_on_a_way_that_cuts_anywhere_each_key_is_one_run(
    house: House, open_client: Open, seed: int
) -> None:
    house.start("--no-worker")
    async with CuttingWay(house.url, seed, lambda dice: dice.randrange(4_000)) as way:
        client = open_client(way.url)
        runs = await asyncio.gather(
            *(client.submit("demo.echo", ECHO, key=str(number)) for number in range(20))
        )
    assert way.cut > 5
    assert len({run.id for run in runs}) == 20
    assert await house.count(RUNS) == 20


class Lossy:
    """A way that lets ever more of a call through, until its answer arrives at last."""

    def __init__(self, house: House, open_client: Open) -> None:
        self._house = house
        self._open_client = open_client
        self.cut = 0

    async def call(self, who: str, work: Callable[[Client], Awaitable[T]]) -> T:
        more = iter([300, 700, 900, 1_500, 2_500, 4_000, 2**30])
        async with CuttingWay(self._house.url, 0, lambda _: next(more)) as way:
            answer = await work(self._open_client(way.url, who))
        self.cut += way.cut
        return answer


async def test_what_people_decide_counts_once_however_often_its_answer_is_lost(
    house: House, open_client: Open, simulator: Simulator
) -> None:
    """P11."""
    simulator.put_fault("bank", "accept_then_drop", match="cut-2")
    house.start()
    member, lossy = open_client(), Lossy(house, open_client)
    order = {"amount": "20.00", "bank": "opaque"}
    asking = await member.submit(
        "demo.refund", {**order, "order_id": "cut-1", "needs_approval": True}
    )
    doubting = await member.submit("demo.refund", {**order, "order_id": "cut-2"})
    await _until(member, asking.id, "approval.requested")
    await _until(member, doubting.id, "run.unknown")
    waiting = [one async for one in open_client(who="approver").approvals()]
    doubts = [one async for one in open_client(who="operator").operations()]
    assert (len(waiting), len(doubts)) == (1, 1)
    await lossy.call("approver", lambda one: one.decide(waiting[0], "approve"))
    receipt = {"id": "r"}
    await lossy.call(
        "operator",
        lambda one: one.resolve(doubts[0], "submitted", evidence="statement", receipt=receipt),
    )
    assert lossy.cut >= 4
    assert (await member.wait(asking.id))["receipt"]
    assert await member.wait(doubting.id) == {"receipt": receipt}
    assert len([one for one in simulator.truth("bank") if "cut-1" in str(one)]) == 1


async def test_what_is_done_to_a_run_counts_once_however_often_its_answer_is_lost(
    house: House, open_client: Open
) -> None:
    house.start()
    member, lossy = open_client(), Lossy(house, open_client)
    run = await member.submit("demo.sleep", {"seconds": 600})
    stored = await lossy.call("member", lambda one: one.signal(run.id, "go"))
    await lossy.call("member", lambda one: one.cancel(run.id))
    await _until(member, run.id, "run.cancelled")
    retried = await lossy.call("member", lambda one: one.retry(run.id))
    await member.cancel(retried.id)
    assert lossy.cut >= 6
    assert (stored.number, retried.revision) == (1, 2)
    assert await house.count(RUNS) == 2
    assert await house.count("SELECT count(*) FROM earnest.signal") == 1


async def _until(client: Client, run_id: str, type: str) -> None:
    async with aclosing(client.events(run_id)) as events:
        async for event in events:
            if event.type == type:
                return


# ---- watching and waiting ----------------------------------------------------------------------


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
async def test_events_and_waiting_go_on_over_a_restart(
    house: House, open_client: Open, kill: bool
) -> None:
    house.start()
    client = open_client()
    run = await client.submit("demo.sleep", {"seconds": 4})
    waiting = asyncio.create_task(client.wait(run.id))
    seen = []
    async with aclosing(client.events(run.id)) as events:
        async for event in events:
            assert isinstance(event, Event)
            seen.append(event)
            if len(seen) == 5:
                await house.restart(kill=kill)
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].type == "run.succeeded"
    assert await waiting == {"seconds": 4}
    assert await house.count("SELECT max(seq) FROM earnest.event") == len(seen)


@pytest.mark.parametrize("seed", SEEDS)
async def test_events_and_text_are_whole_on_a_way_that_cuts_anywhere(
    house: House, open_client: Open, seed: int
) -> None:
    house.start()
    direct = open_client()
    run = await direct.submit("demo.steps", {"count": 40})
    written = await direct.submit("demo.text", {"words": 120})
    text = (await direct.wait(written.id))["text"]
    async with CuttingWay(house.url, seed, lambda dice: dice.randrange(9_000)) as way:
        client = open_client(way.url)
        seen = [event async for event in client.events(run.id)]
        pieces = [piece.content async for piece in client.text(written.id)]
    assert way.cut > 1
    assert seen == [event async for event in direct.events(run.id)]
    assert [event.seq for event in seen if isinstance(event, Event)] == list(
        range(1, len(seen) + 1)
    )
    assert "".join(pieces) == text


# ---- files -------------------------------------------------------------------------------------


async def test_a_file_arrives_whole_on_a_way_that_cuts_anywhere(
    house: House, open_client: Open, tmp_path: Path
) -> None:
    house.start("--no-worker")
    data = random.Random(7).randbytes(3_000_000)

    def budget(dice: random.Random) -> int:
        # Now and then a connection is good for all of it.
        return 10_000_000 if dice.random() < 0.3 else dice.randrange(2_500_000)

    async with CuttingWay(house.url, 11, budget) as way:
        client = open_client(way.url)
        artifact = await client.upload(data, name="large.bin", key="file")
        path = await client.download(artifact.id, tmp_path / "large.bin")
    assert way.cut > 1
    assert path.read_bytes() == data
    assert artifact.sha256 == hashlib.sha256(data).hexdigest()
    assert await house.count("SELECT count(*) FROM earnest.artifact") == 1
    assert not path.with_name("large.bin.part").exists()

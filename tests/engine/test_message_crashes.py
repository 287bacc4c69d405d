"""Killed between commit, sending and marking: what arrives, counted at the far end (P4, P13).

The process is really killed (SIGKILL at a crash point); another one relays what it left. The
consumer is an inbox of Earnest behind a real socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from earnest.engine.messages import sourcing, subscribing
from earnest.engine.messages.receiving import receive
from earnest.engine.messages.subscribing import Subscription
from earnest.engine.process import scopes
from earnest.engine.process.actors import local
from earnest.engine.process.engine import Engine
from earnest.engine.process.sealing import Sealer
from earnest.testing.crashing import crash_at
from tests.engine import message_process
from tests.engine.message_process import SCOPE
from tests.engine.receiver import Got, Receiver

CONSUMER = "consumer"
_LEASED = "SELECT count(*) FROM delivery WHERE state = 'pending' AND due_at > clock()"


class Consumer(Receiver):
    """Answers 204 once its inbox has handled the message."""

    engine: Engine

    async def answer(self, got: Got) -> int:
        await receive(self.engine, "shop", got.headers, got.body)
        return 204


@dataclass
class Stage:
    """Who tells, who hears, and the process that dies in between."""

    engine: Engine
    url: str
    consumer: Consumer

    async def kill_at(self, point: str, how: str = "outbox") -> None:
        ended = await self._process(how, crash_at(point))
        assert ended == -signal.SIGKILL, f"it was to be killed at {point}, and ended with {ended}"

    async def go_on(self) -> None:
        """Another process relays: at once, and when the leases of the dead one are over."""
        for _ in range(2):
            assert await self._process("relay", {}) == 0
            async with asyncio.timeout(30):
                while await self._count(_LEASED):  # noqa: ASYNC110
                    await asyncio.sleep(0)

    async def paid(self) -> int:
        return await self._count("SELECT count(*) FROM setting WHERE name = 'paid 1'")

    async def effects(self) -> int:
        """What the consumer has done."""
        return await self._count("SELECT count(*) FROM setting WHERE name LIKE 'told of %'")

    async def _count(self, question: str) -> int:
        async with self.engine.database.connection() as tx:
            found: int = await tx.fetchval(question)
        return found

    async def _process(self, how: str, more: dict[str, str]) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.engine.message_process", self.url, how, self.consumer.url,
            env={**os.environ, **more}, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        return await asyncio.wait_for(process.wait(), 60)


@pytest.fixture
async def stage(
    make_engine: Callable[..., Engine], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    monkeypatch.setenv("EARNEST_SECRET_KEY", Fernet.generate_key().decode())
    monkeypatch.setenv("EARNEST_ALLOW_PRIVATE_ADDRESSES", "127.0.0.0/8")
    engine = make_engine(message_process.app)
    engine.sealer = Sealer()
    for scope in (SCOPE, CONSUMER):
        await scopes.register(engine, scope, "ann")
    async with Consumer() as consumer:
        consumer.engine = engine
        asked = Subscription(consumer.url, ["order.paid"])
        made = await subscribing.add_webhook(engine, local(SCOPE), asked)
        await sourcing.add_source(engine, local(CONSUMER), "shop", "shop", made.secret)
        yield Stage(engine, database_url, consumer)


pytestmark = pytest.mark.fault


async def test_killed_before_the_commit_nothing_is_told(stage: Stage) -> None:
    await stage.kill_at("confirm.before")
    await stage.go_on()
    assert (await stage.paid(), len(stage.consumer.got), await stage.effects()) == (0, 0, 0)


@pytest.mark.parametrize("point", ["confirm.after", "take.before", "take.after", "deliver.before"])
async def test_killed_between_commit_and_sending_it_is_told_all_the_same(
    stage: Stage, point: str
) -> None:
    await stage.kill_at(point)
    assert (await stage.paid(), len(stage.consumer.got)) == (1, 0)
    await stage.go_on()
    assert (await stage.paid(), len(stage.consumer.got), await stage.effects()) == (1, 1, 1)


@pytest.mark.parametrize("point", ["deliver.after", "ack.before"])
async def test_killed_between_sending_and_marking_it_is_told_twice_and_done_once(
    stage: Stage, point: str
) -> None:
    await stage.kill_at(point)
    assert (len(stage.consumer.got), await stage.effects()) == (1, 1)
    await stage.go_on()
    assert (await stage.paid(), len(stage.consumer.got), await stage.effects()) == (1, 2, 1)
    assert len({got.id for got in stage.consumer.got}) == 1


@pytest.mark.parametrize("point", ["publish.before", "publish.after"])
async def test_what_a_handler_publishes_is_told_once_whoever_dies(stage: Stage, point: str) -> None:
    """P4, P13: the next attempt finds it remembered, or publishes it."""
    await stage.kill_at(point, how="handler")
    assert len(stage.consumer.got) == 0
    assert await stage._process("handler", {}) == 0
    await stage.go_on()
    assert (len(stage.consumer.got), await stage.effects()) == (1, 1)


@pytest.mark.parametrize(("point", "done"), [("receive.before", 0), ("receive.after", 1)])
async def test_a_message_whose_receiver_is_killed_is_handled_once(
    stage: Stage, point: str, done: int
) -> None:
    """P13, P16: it is told again, since nobody heard that it was handled."""
    await stage.kill_at("ack.before")
    (got,) = stage.consumer.got
    told = json.dumps([dict(got.headers), got.body.decode()])
    async with stage.engine.database.connection() as tx:
        await tx.execute("DELETE FROM setting WHERE name LIKE 'told of %'; DELETE FROM inbox_entry")
    ended = await stage._process("receive", {**crash_at(point), "TOLD": told})
    assert (ended, await stage.effects()) == (-signal.SIGKILL, done)
    assert await stage._process("receive", {"TOLD": told}) == 0
    assert await stage.effects() == 1


async def test_killed_after_marking_it_is_told_once(stage: Stage) -> None:
    await stage.kill_at("ack.after")
    await stage.go_on()
    assert (await stage.paid(), len(stage.consumer.got), await stage.effects()) == (1, 1, 1)


async def test_without_an_outbox_it_is_lost(stage: Stage) -> None:
    """The negative control: what is sent after the commit, by whoever committed, dies with it."""
    await stage.kill_at("confirm.after", how="direct")
    await stage.go_on()
    assert (await stage.paid(), len(stage.consumer.got)) == (1, 0)

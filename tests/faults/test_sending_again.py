"""A doubtful call is sent again with patience, by one caller at a time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from earnest.domain.operation import Operation, OperationState
from earnest.engine.attempts.working import Worker
from earnest.engine.process.doorbells import MOVED
from earnest.engine.process.engine import Engine
from earnest.engine.process.settings import EngineSettings
from earnest.engine.runs import submitting
from earnest.store import operations
from earnest.testing.simulator import Simulator
from tests.faults.roles import open_engine

pytestmark = pytest.mark.fault


async def test_a_bank_that_is_down_is_not_stormed_with_repetitions(
    database_url: str, simulator: Simulator
) -> None:
    """Each sent once by its attempt and once by whoever took the question; then the long pause."""
    match = f"order-{uuid4().hex}"
    simulator.put_fault("bank", "error_before", count=1000, match=match)
    settings = EngineSettings(resend_waits=(), first_question=timedelta(minutes=1))
    async with open_engine(database_url, simulator.url, settings) as engine:
        orders = [{"order_id": f"{match}-{number}", "bank": "keyed"} for number in range(40)]
        await submitting.submit_many(engine, "scope", "person", "refund", orders)
        worker = Worker(engine)
        working = asyncio.create_task(worker.run())
        while not all(map(_is_put_off, found := await _operations(engine))) or len(found) < 40:
            await engine.bells.wait(MOVED, timedelta(milliseconds=50))
        worker.stop()
        await working
    assert [operation.send_count for operation in found] == [2] * 40


async def _operations(engine: Engine) -> list[Operation]:
    return await operations.listed(engine.database, "scope", None, None, 100)


def _is_put_off(operation: Operation) -> bool:
    return operation.state is OperationState.UNKNOWN and operation.lookup_count > 0

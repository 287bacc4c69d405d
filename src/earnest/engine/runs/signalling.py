"""Signals: named facts sent to a run from outside. They wait for the run: those of one name are
taken in the order they came, each by one wait, whether the run waited already or asks later.
"""

from __future__ import annotations

import uuid
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.canonical import storable
from earnest.domain.errors import Conflict, IdempotencyConflict, InvalidRequest, NotFound
from earnest.domain.event import MAX_PAYLOAD_BYTES, NewEvent
from earnest.domain.run import RunStatus
from earnest.engine.process.doorbells import WORK
from earnest.engine.process.engine import Engine
from earnest.engine.runs import moving
from earnest.engine.runs.submitting import MAX_KEY
from earnest.store import executions, facts
from earnest.store.database import Tx


async def signal(
    engine: Engine,
    scope_id: str,
    run_id: uuid.UUID,
    name: str,
    payload: Any,
    *,
    by: str,
    key: str | None = None,
) -> int:
    """Stores the signal and wakes the run if it waits for it; returns its number among those of
    its name. With a key, sending it again is harmless. Raises `NotFound`, `InvalidRequest`, and
    `Conflict` when the run has ended."""
    data = _checked(name, payload, key)
    # Without a caller's key a lost reply could not be told from a second signal.
    own_key = key or f"once:{ids.new_token()}"

    async def work(tx: Tx) -> int:
        return await _put(tx, scope_id, run_id, name, data, by, own_key)

    number = await engine.database.promise("signal", work)
    engine.bells.ring(WORK)
    engine.bells.moved(run_id)
    return number


async def signal_in(
    tx: Tx, scope_id: str, run_id: uuid.UUID, name: str, payload: Any, *, by: str, key: str
) -> int:
    """As `signal`, as a part of the caller's promise."""
    return await _put(tx, scope_id, run_id, name, _checked(name, payload, key), by, key)


async def _put(
    tx: Tx, scope_id: str, run_id: uuid.UUID, name: str, data: bytes, by: str, key: str
) -> int:
    locked = await executions.lock(tx, scope_id, [run_id])
    if run_id not in locked:
        raise NotFound(f"no such run: {ids.show('run', run_id)}")
    known = await facts.signal_by_key(tx, scope_id, run_id, by, key)
    if known is not None:
        if known.name != name or canonical.encode(known.payload) != data:
            raise IdempotencyConflict(f"the key {key!r} was used for another signal")
        return known.number
    if locked[run_id].final:
        raise Conflict(f"the run is {locked[run_id].status}; it takes no more signals")
    number = await facts.put_signal(tx, scope_id, run_id, name, data, by, key)
    event = NewEvent("signal.received", {"name": name, "number": number})
    await executions.touch(tx, scope_id, run_id, [event])
    await _wake_if_waited_for(tx, scope_id, run_id, name, number)
    return number


async def _wake_if_waited_for(
    tx: Tx, scope_id: str, run_id: uuid.UUID, name: str, number: int
) -> None:
    locked = await executions.lock(tx, scope_id, [run_id])
    row = locked[run_id]
    if row.status is not RunStatus.WAITING:
        return
    for wait in row.waiting_on or ():
        if wait["kind"] == "signal" and wait["name"] == name and wait["number"] <= number:
            await moving.wake(tx, locked, run_id, {"kind": "signal", "name": name})
            return


def _checked(name: str, payload: Any, key: str | None) -> bytes:
    if not 1 <= len(name) <= 200 or not storable(name):
        raise InvalidRequest("a signal's name has 1 to 200 characters")
    if key is not None and (not 1 <= len(key) <= MAX_KEY or not storable(key)):
        raise InvalidRequest(f"an idempotency key has 1 to {MAX_KEY} characters")
    try:
        data = canonical.encode(payload)
    except canonical.NotJson as error:
        raise InvalidRequest(f"the signal cannot be stored: {error}") from error
    if len(data) > MAX_PAYLOAD_BYTES:
        raise InvalidRequest(f"a signal has at most {MAX_PAYLOAD_BYTES} bytes")
    return data

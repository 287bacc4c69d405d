"""Submitting: a request becomes a run, once (P7).

Keys belong to the principal. Same key and same request give the same run; same key and another
request are a conflict. A request that is refused stores nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from earnest.domain import canonical, ids
from earnest.domain.canonical import storable
from earnest.domain.errors import (
    Conflict,
    IdempotencyConflict,
    InvalidRequest,
    PayloadTooLarge,
)
from earnest.domain.run import NewRun, Run
from earnest.engine.process import as_sent
from earnest.engine.process.doorbells import WORK
from earnest.engine.process.engine import Engine
from earnest.engine.process.kinds import RunKind
from earnest.engine.process.unchecked import is_same_request
from earnest.store import runs
from earnest.store.database import Tx

MAX_KEY = 255
MAX_LABELS = 32
PRIORITIES = range(-1000, 1001)


class Request(Struct, frozen=True):
    """A request for a run, as a door hands it over. `fingerprint_of` is what the client sent,
    before defaults; without it the request itself is taken."""

    kind: str
    input: Any
    key: str | None = None
    lane: str | None = None
    priority: int = 0
    not_before: datetime | None = None
    conversation_id: str | None = None
    context: dict[str, Any] = {}
    labels: dict[str, str] = {}
    traceparent: str | None = None
    fingerprint_of: Any = None


class Submitted(Struct, frozen=True):
    """The run, and whether it was there already."""

    run: Run
    replayed: bool


async def submit(engine: Engine, scope_id: str, principal_id: str, request: Request) -> Submitted:
    """Makes the run, or finds the one that this key made. Readable when this returns.

    Raises `UnknownKind`, `InvalidRequest`, `PayloadTooLarge`, `IdempotencyConflict`.
    """
    kind = engine.kinds.require(request.kind)
    new = _new_run(engine, kind, scope_id, principal_id, request)

    async def work(tx: Tx) -> Submitted:
        fresh = await runs.insert(
            tx, new, runs.Lineage(new.run_id), fails_on_doubt=kind.on_unknown == "fail"
        )
        if fresh is not None:
            return Submitted(fresh, replayed=False)
        run_id = await _the_same(tx, kind, new)
        run = await runs.find(tx, scope_id, run_id)
        assert run is not None, "its insert found it in the way"
        return Submitted(run, replayed=run_id != new.run_id)

    submitted = await engine.database.promise("submit", work, one_statement=True)
    engine.bells.ring(WORK)
    return submitted


async def submit_many(
    engine: Engine,
    scope_id: str,
    principal_id: str,
    kind_name: str,
    inputs: Sequence[Any],
    keys: Sequence[str | None] | None = None,
) -> list[uuid.UUID]:
    """Many runs of one kind in one commit; returns their ids in order. All inputs are checked
    first; a key that exists with the same request gives its run, with another a conflict, and
    then nothing is stored."""
    kind = engine.kinds.require(kind_name)
    keys = keys if keys is not None else [None] * len(inputs)
    if len(keys) != len(inputs):
        raise InvalidRequest(f"{len(inputs)} inputs came with {len(keys)} keys; give one each")
    new = [
        _new_run(engine, kind, scope_id, principal_id, _one_of_many(kind_name, value, key))
        for value, key in zip(inputs, keys, strict=True)
    ]

    async def work(tx: Tx) -> list[uuid.UUID]:
        fails = kind.on_unknown == "fail"
        fresh = await runs.insert_many(tx, new, fails_on_doubt=fails)
        return [
            one.run_id if one.run_id in fresh else await _the_same(tx, kind, one) for one in new
        ]

    found = await engine.database.promise("submit", work)
    engine.bells.ring(WORK)
    return found


def _one_of_many(kind: str, value: Any, key: str | None) -> Request:
    sent = None if key is None else as_sent.request(kind, value)
    return Request(kind, value, key, fingerprint_of=sent)


async def _the_same(tx: Tx, kind: RunKind[Any, Any], new: NewRun) -> uuid.UUID:
    """The run that stands where `new` would: same id (a lost reply) or same key and request."""
    if new.idempotency_key is None:
        return new.run_id
    found = await runs.find_by_key(tx, new.scope_id, new.principal_id, new.idempotency_key)
    if found is None:
        raise Conflict("the run's id is taken; submit again without giving an id")
    if found[1] != new.fingerprint and not await is_same_request(tx, kind, new, found[0]):
        raise IdempotencyConflict(
            f"the key {new.idempotency_key!r} was used for another request; use a new key, or send "
            "the same request again",
            fields={"run_id": ids.show("run", found[0])},
        )
    return found[0]


def encode_input(engine: Engine, kind: RunKind[Any, Any], value: Any) -> bytes:
    """The canonical bytes of an input. Raises `InvalidRequest`, `PayloadTooLarge`."""
    data = kind.encode_input(value)
    if len(data) > engine.settings.max_input_bytes:
        raise PayloadTooLarge(
            f"the input has {len(data)} bytes; at most {engine.settings.max_input_bytes} are "
            "taken: store larger things as artifacts and pass their ids"
        )
    return data


def _new_run(
    engine: Engine, kind: RunKind[Any, Any], scope_id: str, principal_id: str, request: Request
) -> NewRun:
    _check(engine, request)
    data = encode_input(engine, kind, request.input)
    return NewRun(
        scope_id=scope_id,
        run_id=ids.new_id(),
        kind=kind.name,
        lane=request.lane or kind.lane,
        principal_id=principal_id,
        input=data,
        idempotency_key=request.key,
        fingerprint=_fingerprint(request, data),
        context=request.context,
        labels=request.labels,
        priority=request.priority,
        not_before=request.not_before,
        deadline=kind.deadline,
        max_attempts=kind.retry.max_attempts,
        conversation_id=request.conversation_id,
        traceparent=request.traceparent,
    )


def _fingerprint(request: Request, data: bytes) -> bytes:
    if request.key is None:
        return b""
    if request.fingerprint_of is not None:
        return canonical.digest(canonical.encode(request.fingerprint_of))
    return canonical.digest(b"\x00".join((request.kind.encode(), data)))


def _check(engine: Engine, request: Request) -> None:
    _check_texts(request)
    if request.lane is not None and request.lane not in engine.kinds.lanes():
        known = ", ".join(engine.kinds.lanes())
        raise InvalidRequest(f"there is no lane {request.lane[:80]!r}; there are: {known}")
    if request.priority not in PRIORITIES:
        raise InvalidRequest("priority is a whole number from -1000 to 1000")
    if request.not_before is not None and request.not_before.tzinfo is None:
        raise InvalidRequest("not_before needs a time zone, such as 2026-01-31T12:00:00Z")
    labels = [*request.labels, *request.labels.values()]
    if len(request.labels) > MAX_LABELS or not all(_is_text(text, 0, 200) for text in labels):
        raise InvalidRequest(f"at most {MAX_LABELS} labels of at most 200 characters are taken")
    for name, value in (("context", request.context), ("labels", request.labels)):
        if not value:
            continue
        try:
            canonical.encode(value)
        except canonical.NotJson as error:
            raise InvalidRequest(f"{name} cannot be stored: {error}") from error


def _check_texts(request: Request) -> None:
    if request.key is not None and not _is_text(request.key, 1, MAX_KEY):
        raise InvalidRequest(f"an idempotency key has 1 to {MAX_KEY} characters")
    for text in (request.conversation_id, request.traceparent):
        if text is not None and not _is_text(text, 0, MAX_KEY):
            raise InvalidRequest(f"conversation and traceparent have at most {MAX_KEY} characters")
    for text in (request.key, request.conversation_id, request.traceparent):
        if text is not None and not storable(text):
            raise InvalidRequest("a NUL or half of a surrogate pair cannot be stored")


def _is_text(value: object, least: int, most: int) -> bool:
    return isinstance(value, str) and least <= len(value) <= most

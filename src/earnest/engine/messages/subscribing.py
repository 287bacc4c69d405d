"""Subscribing: who is told what. An admin of a scope rules its webhooks.

A secret is made here, shown once and stored sealed. Every change leaves an entry in the audit.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from earnest.domain import canonical, ids
from earnest.domain.access import RequestKey
from earnest.domain.canonical import storable
from earnest.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    StaleVersion,
)
from earnest.engine.process import auditing
from earnest.engine.process.actors import Actor, Role
from earnest.engine.process.doorbells import MOVED
from earnest.engine.process.engine import Engine
from earnest.engine.streams.sequencing import Sequencer
from earnest.store import messages, sinks
from earnest.store.database import Tx
from earnest.store.messages import Message, NewDelivery
from earnest.store.sinks import NewSink, Sink, SinkChange

MOST_SINKS = 50
MOST_TYPES = 50
MAX_DESCRIPTION = 500
OVERLAP = timedelta(days=1)
LONGEST_OVERLAP = timedelta(days=30)
TEST_TYPE = "webhook.test"

_PATTERN = re.compile(r"\*|[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*(\.\*)?", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,50}(\.[A-Za-z0-9_-]{1,50}){0,5}", re.ASCII)
_STATES = ("active", "paused", "disabled")


@dataclass(frozen=True, slots=True)
class Subscription:
    """What an admin asks for: messages of these types (`run.succeeded`, `refund.*`, `*`)."""

    address: str
    types: Sequence[str]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The sink; its `secret` is there when it was made just now, and never again."""

    sink: Sink
    secret: str | None
    replayed: bool = False


async def add_webhook(
    engine: Engine, actor: Actor, asked: Subscription, key: RequestKey | None = None
) -> Subscribed:
    """A webhook that is told what is new from now on. The same key and request give the same one,
    without its secret. Raises `Forbidden`, `InvalidRequest`, `AddressRefused`,
    `IdempotencyConflict` and `QuotaExceeded`."""
    from earnest.engine.messages import signing
    from earnest.engine.process.addresses import AddressPolicy
    from earnest.engine.process.outgoing import check_url

    actor.require(Role.ADMIN)
    check_url(asked.address, AddressPolicy.from_environment())
    secret = signing.new_secret()
    sealed = engine.sealer.seal(secret)
    return await _add(engine, actor, "webhook", asked, key, secret, sealed)


async def add_nats(engine: Engine, actor: Actor, asked: Subscription) -> Subscribed:
    """A sink on the deployment's NATS server. The address is the first part of its subjects."""
    actor.require(Role.ADMIN)
    if not _PREFIX.fullmatch(asked.address):
        raise InvalidRequest("a prefix is words of letters, digits, `_` and `-` with dots between")
    return await _add(engine, actor, "nats", asked, None, None, None)


async def change_sink(
    engine: Engine, actor: Actor, sink_id: uuid.UUID, to: SinkChange, version: int | None = None
) -> Sink:
    """Changes what is given. `paused`: nothing is sent, everything waits. `disabled`: nothing waits
    either. Raises `NotFound`, `StaleVersion`, `InvalidRequest`, `AddressRefused`."""
    actor.require(Role.ADMIN)
    before = await find_sink(engine, actor, sink_id)
    _check_change(before, to)
    if before.state == "disabled":
        await _catch_up(engine)

    async def work(tx: Tx) -> Sink | None:
        changed = await sinks.change(tx, actor.scope_id, sink_id, version, to)
        if changed is not None:
            told = {"state": changed.state, "types": list(changed.types)}
            await auditing.keep(tx, actor, f"{changed.kind}.changed", _shown(sink_id), told)
        return changed

    changed = await engine.database.promise("access", work)
    if changed is None:
        raise StaleVersion(f"{_shown(sink_id)} has changed since it was read; look at it again")
    engine.bells.ring(MOVED)
    return changed


async def rotate_secret(
    engine: Engine, actor: Actor, sink_id: uuid.UUID, overlap: timedelta = OVERLAP
) -> Subscribed:
    """A new secret; the one before signs, too, for the time of the overlap, as do those that still
    had time. Without an overlap the new one alone is good. Raises `NotFound`."""
    from earnest.engine.messages import signing

    actor.require(Role.ADMIN)
    check_overlap(overlap)
    secret = signing.new_secret()
    sealed = engine.sealer.seal(secret)

    async def work(tx: Tx) -> Sink | None:
        rotated = await sinks.rotate(tx, actor.scope_id, sink_id, sealed, overlap)
        if rotated is not None:
            told = {"overlap_seconds": int(overlap.total_seconds())}
            await auditing.keep(tx, actor, "webhook.rotated", _shown(sink_id), told)
        return rotated

    rotated = await engine.database.promise("access", work)
    if rotated is None:
        raise NotFound(f"no such webhook: {_shown(sink_id)}")
    return Subscribed(rotated, secret)


async def remove_sink(engine: Engine, actor: Actor, sink_id: uuid.UUID) -> None:
    """It is told nothing more, and what waited for it is gone. Raises `NotFound`."""
    actor.require(Role.ADMIN)
    found = await find_sink(engine, actor, sink_id)

    async def work(tx: Tx) -> bool:
        removed = await sinks.remove(tx, actor.scope_id, sink_id)
        if removed:
            await auditing.keep(tx, actor, f"{found.kind}.removed", _shown(sink_id))
        return removed

    await engine.database.promise("access", work)


async def send_test(engine: Engine, actor: Actor, sink_id: uuid.UUID) -> uuid.UUID:
    """Sends it a message of the type `webhook.test`, on the way that all others take; returns the
    delivery's id. Raises `NotFound`, and `Conflict` where nothing is sent now."""
    actor.require(Role.ADMIN)
    found = await find_sink(engine, actor, sink_id)
    if found.state != "active":
        raise Conflict(f"{_shown(sink_id)} is {found.state}; make it active first")
    delivery_id = ids.new_id()
    payload = {"sink_id": _shown(sink_id)}
    message = Message(
        actor.scope_id, ids.new_id(), TEST_TYPE, None, None, payload, datetime.now(UTC)
    )
    new = NewDelivery(sink_id, delivery_id, message, canonical.encode(payload))
    await engine.database.promise("publish", lambda tx: messages.put_deliveries(tx, [new]))
    engine.bells.ring(MOVED)
    return delivery_id


async def find_sink(engine: Engine, actor: Actor, sink_id: uuid.UUID) -> Sink:
    """Raises `Forbidden` and `NotFound`."""
    actor.require(Role.ADMIN)
    found = await sinks.find(engine.database, actor.scope_id, sink_id)
    if found is None:
        raise NotFound(f"no such sink: {_shown(sink_id)}")
    return found


def check_overlap(overlap: timedelta) -> None:
    """Raises `InvalidRequest`."""
    if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise InvalidRequest(f"the overlap is between 0 and {LONGEST_OVERLAP.days} days")


# ---- inside ------------------------------------------------------------------------------------


async def _add(
    engine: Engine,
    actor: Actor,
    kind: str,
    asked: Subscription,
    key: RequestKey | None,
    secret: str | None,
    sealed: bytes | None,
) -> Subscribed:
    _check_types(asked.types)
    _check_description(asked.description)
    new = NewSink(
        scope_id=actor.scope_id,
        sink_id=ids.new_id(),
        kind=kind,
        address=asked.address,
        types=asked.types,
        description=asked.description,
        secret=sealed,
        created_by=actor.principal_id,
        key=None if key is None else key.key,
        fingerprint=None if key is None else key.fingerprint,
    )
    await _catch_up(engine)

    async def work(tx: Tx) -> tuple[Sink, bool]:
        made = await sinks.put(tx, new)
        if made is None:
            known = await sinks.by_key(tx, new.scope_id, new.created_by, new.key or "")
            assert known is not None, "its key was taken"
            return known, False
        await _require_room(tx, actor.scope_id)
        what = {"types": list(made.types), "address": made.address}
        await auditing.keep(tx, actor, f"{kind}.created", _shown(made.sink_id), what)
        return made, True

    async def reread(tx: Tx) -> tuple[Sink, bool] | None:
        made = await sinks.find_in(tx, new.scope_id, new.sink_id)
        return None if made is None else (made, True)

    sink, fresh = await engine.database.promise("access", work, reread=reread)
    if key is not None and sink.fingerprint is not None:
        key.require_same(sink.fingerprint)
    return Subscribed(sink, secret if fresh else None, replayed=not fresh)


async def _catch_up(engine: Engine) -> None:
    """What was committed before is not new: without this it might come into the feed only later."""
    await Sequencer(engine).catch_up()


async def _require_room(tx: Tx, scope_id: str) -> None:
    """With the one that was just made; one more than there is room for is not kept."""
    if await sinks.count(tx, scope_id, MOST_SINKS + 1) > MOST_SINKS:
        raise QuotaExceeded(f"a scope has at most {MOST_SINKS} sinks; remove one first")


def _check_change(before: Sink, to: SinkChange) -> None:
    from earnest.engine.process.addresses import AddressPolicy
    from earnest.engine.process.outgoing import check_url

    if to.address is not None:
        if before.kind != "webhook":
            raise InvalidRequest("only a webhook has an address that can be changed")
        check_url(to.address, AddressPolicy.from_environment())
    if to.types is not None:
        _check_types(to.types)
    if to.description is not None:
        _check_description(to.description)
    if to.state is not None and to.state not in _STATES:
        raise InvalidRequest(f"a sink is {', '.join(_STATES[:-1])} or {_STATES[-1]}")


def _check_types(types: Sequence[str]) -> None:
    if not 1 <= len(types) <= MOST_TYPES:
        raise InvalidRequest(f"name 1 to {MOST_TYPES} types, such as run.succeeded or refund.*")
    for one in types:
        if len(one) > 100 or not _PATTERN.fullmatch(one):
            raise InvalidRequest(
                f"{one[:80]!r} is no type: write dotted lower-case words, with `.*` at the end for "
                "all that begin so, or `*` for everything"
            )


def _check_description(text: str) -> None:
    if len(text) > MAX_DESCRIPTION or not storable(text):
        raise InvalidRequest(f"a description has at most {MAX_DESCRIPTION} characters")


def _shown(sink_id: uuid.UUID) -> str:
    return ids.show("sink", sink_id)

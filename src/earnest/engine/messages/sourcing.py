"""Sources: who may send messages in. An admin of a scope rules its own.

A secret is made here and shown once, or was made by the sender and is given; it is stored sealed.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import timedelta

from earnest.domain.errors import Conflict, InvalidRequest, NotFound
from earnest.engine.messages import signing
from earnest.engine.messages.receiving import SOURCE_NAME
from earnest.engine.messages.subscribing import OVERLAP, check_overlap
from earnest.engine.process import auditing
from earnest.engine.process.actors import Actor, Role
from earnest.engine.process.engine import Engine
from earnest.store import inbox
from earnest.store.database import Tx
from earnest.store.inbox import Source

_LEAST_BYTES, _MOST_BYTES = 24, 64


@dataclass(frozen=True, slots=True)
class Sourced:
    """The source; its `secret` is there when it was made here, just now."""

    source: Source
    secret: str | None


async def add_source(
    engine: Engine, actor: Actor, name: str, handler: str, secret: str | None = None
) -> Sourced:
    """A source whose messages go to the app's inbox `handler`. Raises `Forbidden`,
    `InvalidRequest`, and `Conflict` for a name that is taken in the deployment."""
    actor.require(Role.ADMIN)
    if not SOURCE_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} is no name for a source: 1 to 63 lower-case letters, digits, `_`, `.` "
            "or `-`, the first a letter or digit"
        )
    if not 1 <= len(handler) <= 100 or not handler.isprintable():
        raise InvalidRequest("a handler has the name that the app gave its inbox")
    sealed, shown = _seal(engine, secret)

    async def work(tx: Tx) -> Source | None:
        made = await inbox.put_source(tx, actor.scope_id, name, handler, sealed, actor.principal_id)
        if made is not None:
            await auditing.keep(tx, actor, "source.created", f"source {name}", {"handler": handler})
        return made

    async def reread(tx: Tx) -> Source | None:
        return await inbox.sealed_with(tx, actor.scope_id, name, sealed)

    made = await engine.database.promise("access", work, reread=reread)
    if made is None:
        raise Conflict(f"the name {name!r} is taken; names of sources are shared by all scopes")
    return Sourced(made, shown)


async def rotate_source(
    engine: Engine,
    actor: Actor,
    name: str,
    overlap: timedelta = OVERLAP,
    secret: str | None = None,
) -> Sourced:
    """A new secret; the one before is taken, too, for the time of the overlap. Raises `NotFound`,
    `InvalidRequest`."""
    actor.require(Role.ADMIN)
    check_overlap(overlap)
    sealed, shown = _seal(engine, secret)

    async def work(tx: Tx) -> Source | None:
        rotated = await inbox.rotate(tx, actor.scope_id, name, sealed, overlap)
        if rotated is not None:
            told = {"overlap_seconds": int(overlap.total_seconds())}
            await auditing.keep(tx, actor, "source.rotated", f"source {name}", told)
        return rotated

    async def reread(tx: Tx) -> Source | None:
        return await inbox.sealed_with(tx, actor.scope_id, name, sealed)

    rotated = await engine.database.promise("access", work, reread=reread)
    if rotated is None:
        raise NotFound(f"no such source: {name[:80]!r}")
    return Sourced(rotated, shown)


async def remove_source(engine: Engine, actor: Actor, name: str) -> None:
    """Its messages are taken no more. What was handled stays known. Raises `NotFound`."""
    actor.require(Role.ADMIN)

    async def work(tx: Tx) -> bool:
        removed = await inbox.remove_source(tx, actor.scope_id, name)
        if removed:
            await auditing.keep(tx, actor, "source.removed", f"source {name}")
        return removed

    if not await engine.database.promise("access", work):
        raise NotFound(f"no such source: {name[:80]!r}")


async def sources(engine: Engine, actor: Actor, after: str | None, limit: int) -> list[Source]:
    """The scope's sources by name. Raises `Forbidden`."""
    actor.require(Role.ADMIN)
    return await inbox.sources(engine.database, actor.scope_id, after, limit)


def _seal(engine: Engine, given: str | None) -> tuple[bytes, str | None]:
    """The sealed secret, and its text if it was made here. Raises `InvalidRequest`."""
    if given is not None:
        _check_secret(given)
        return engine.sealer.seal(given), None
    made = signing.new_secret()
    return engine.sealer.seal(made), made


def _check_secret(text: str) -> None:
    try:
        key = base64.b64decode(text.removeprefix(signing.PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise InvalidRequest(
            f"a secret is `{signing.PREFIX}` and {_LEAST_BYTES} to {_MOST_BYTES} bytes in base64"
        )

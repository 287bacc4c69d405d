"""Announcing: what this process knows of its run kinds is told to the database.

`SELECT earnest.submit(…)` takes a kind's lane, attempts and deadline from what was announced last.
Every process that runs or takes work announces at its start; while old and new code run beside each
other, the one that started last is the one that counts.
"""

from __future__ import annotations

from typing import Any

from pydantic import PydanticUserError

from earnest.domain import canonical
from earnest.engine.process.engine import Engine
from earnest.engine.process.kinds import RunKind
from earnest.engine.process.logs import get_logger
from earnest.store import kinds
from earnest.store.database import Tx
from earnest.store.kinds import Terms

log = get_logger("earnest.kinds")


async def announce(engine: Engine) -> list[str]:
    """Writes the terms of all kinds of this process; what is there already in this form stays
    untouched. Returns the names of the others."""
    terms = [terms_of(kind) for kind in engine.kinds.values()]

    async def work(tx: Tx) -> list[str]:
        return await kinds.announce(tx, terms)

    changed = await engine.database.promise("announce", work, one_statement=True) if terms else []
    if changed:
        log.info("kinds.announced", kinds=changed)
    return changed


def terms_of(kind: RunKind[Any, Any]) -> Terms:
    return Terms(
        name=kind.name,
        lane=kind.lane,
        max_attempts=kind.retry.max_attempts,
        deadline=kind.deadline,
        fails_on_doubt=kind.on_unknown == "fail",
        input_schema=input_schema(kind),
    )


def input_schema(kind: RunKind[Any, Any]) -> bytes:
    """The JSON schema of the input. A type that has none is told as `{}`: anything may fit."""
    try:
        return canonical.encode(kind.input_type.json_schema())
    except (PydanticUserError, canonical.NotJson):
        return b"{}"

"""Run kinds as rows: what SQL must know of the code, and what the code asks of SQL's requests."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from earnest.store.database import Database, Tx
from earnest.store.statements import sql


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run of the kind is submitted with. `input_schema` is JSON."""

    name: str
    lane: str
    max_attempts: int
    deadline: timedelta | None
    fails_on_doubt: bool
    input_schema: bytes


@dataclass(frozen=True, slots=True)
class EarlierRequest:
    """What a run was asked to do, and whether its input is the one to compare with."""

    kind: str
    input: Any
    same_input: bool
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class InputOrigin:
    """`unchecked`: the input was stored by SQL, which knows no types. `agreed`: the schema that
    this process has for it is the one that was announced last."""

    unchecked: bool
    agreed: bool


async def announce(tx: Tx, kinds: Sequence[Terms]) -> list[str]:
    """Writes the terms; returns the names whose terms were not there in this form."""
    rows = await tx.fetch(
        sql("announce_kinds"),
        [kind.name for kind in kinds],
        [kind.lane for kind in kinds],
        [kind.max_attempts for kind in kinds],
        [kind.deadline for kind in kinds],
        [kind.fails_on_doubt for kind in kinds],
        [kind.input_schema for kind in kinds],
    )
    return sorted(row["name"] for row in rows)


async def announced(database: Database) -> list[str]:
    """The names that any process ever announced, in their order."""
    return [row["name"] for row in await database.fetch("announced_kinds")]


async def earlier_request(
    tx: Tx, scope_id: str, run_id: uuid.UUID, compared: bytes
) -> EarlierRequest | None:
    """`None` when the run is a person's retry: that is another request."""
    row = await tx.fetchrow(sql("earlier_request"), scope_id, run_id, compared)
    if row is None:
        return None
    return EarlierRequest(row["kind"], row["input"], row["same_input"], row["fingerprint"])


async def origin_of_input(
    database: Database, scope_id: str, run_id: uuid.UUID, kind: str, input_schema: bytes
) -> InputOrigin:
    row = await database.fetchrow("origin_of_input", scope_id, run_id, kind, input_schema)
    if row is None:
        return InputOrigin(unchecked=False, agreed=False)
    return InputOrigin(bool(row["unchecked"]), bool(row["agreed"]))

"""Requests from SQL: their input was stored without being compared with a type.

Through the other doors an input is checked and stored as its type writes it. SQL knows no types, so
two questions remain for later: whether a request through another door is the same as one from SQL,
and what it means that a stored input does not fit.
"""

from __future__ import annotations

import uuid
from typing import Any

from earnest.domain.errors import CodeChanged, EarnestError, InputInvalid, InvalidRequest
from earnest.domain.run import NewRun
from earnest.engine.process.announcing import input_schema
from earnest.engine.process.engine import Engine
from earnest.engine.process.kinds import RunKind
from earnest.store import kinds
from earnest.store.database import Tx
from earnest.store.executions import Claimed


async def is_same_request(tx: Tx, kind: RunKind[Any, Any], new: NewRun, run_id: uuid.UUID) -> bool:
    """Whether the run came from SQL and was asked for with this kind and input: as it stands, or
    as the kind's type would have written it."""
    asked = await kinds.unchecked_request(tx, new.scope_id, run_id, new.input)
    if asked is None or asked.kind != new.kind:
        return False
    return asked.same_input or _as_its_type_writes_it(kind, asked.input) == new.input


def _as_its_type_writes_it(kind: RunKind[Any, Any], stored: Any) -> bytes | None:
    try:
        return kind.encode_input(stored)
    except InvalidRequest:
        return None


async def judge_misfit(
    engine: Engine, claimed: Claimed, kind: RunKind[Any, Any], misfit: InvalidRequest
) -> EarnestError:
    """What it means that a claimed run's input does not fit the kind.

    Through other doors it fitted once, so the code has changed. From SQL, this is the first look:
    if the code that was announced last has the same schema, the input never fitted, and no attempt
    will change that. If it has another one, other code is about (a deployment under way), and an
    attempt may land on it.
    """
    origin = await kinds.origin_of_input(
        engine.database, claimed.scope_id, claimed.run_id, kind.name, input_schema(kind)
    )
    if origin.unchecked and origin.agreed:
        return InputInvalid(misfit.detail, fields=misfit.fields)
    if origin.unchecked:
        return CodeChanged(f"{misfit.detail}; other code for it was announced, which may take it")
    return no_longer_fits(kind, misfit)


def no_longer_fits(kind: RunKind[Any, Any], misfit: InvalidRequest) -> CodeChanged:
    places = "; ".join(f"{at['pointer']}: {at['detail']}" for at in misfit.fields["errors"][:5])
    return CodeChanged(
        f"the stored input no longer fits {kind.name}: {places}; bring the old code back"
    )

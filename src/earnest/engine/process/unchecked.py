"""Requests from SQL: their input was stored without being compared with a type.

Through the other doors an input is checked and stored as its type writes it. SQL knows no types, so
two questions remain for later: whether a request through another door is the same as one that is
there (`as_sent.py` says what is compared), and what it means that a stored input does not fit.
"""

from __future__ import annotations

import uuid
from typing import Any

from earnest.domain import canonical
from earnest.domain.errors import CodeChanged, EarnestError, InputInvalid, InvalidRequest
from earnest.domain.run import NewRun
from earnest.engine.process import as_sent
from earnest.engine.process.announcing import input_schema
from earnest.engine.process.engine import Engine
from earnest.engine.process.kinds import RunKind
from earnest.store import kinds
from earnest.store.database import Tx
from earnest.store.executions import Claimed

FROM_SQL = b"sql"


async def is_same_request(tx: Tx, kind: RunKind[Any, Any], new: NewRun, run_id: uuid.UUID) -> bool:
    """Whether the run, whose fingerprint is another, was asked for with this kind and input. As
    they were sent, where that is known; else as the kind's type writes them."""
    old = await kinds.earlier_request(tx, new.scope_id, run_id, new.input)
    if old is None or old.kind != new.kind:
        return False
    if as_sent.is_as_written(new.fingerprint, new.kind, new.input) or as_sent.is_as_written(
        old.fingerprint, old.kind, canonical.encode(old.input)
    ):
        return old.same_input or _as_its_type_writes_it(kind, old.input) == new.input
    from_sql = old.fingerprint == FROM_SQL
    return from_sql and as_sent.fingerprint(old.kind, old.input) == new.fingerprint


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

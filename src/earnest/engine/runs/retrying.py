"""Retrying by a person: a run that ended badly is asked for again, as a new run.

The old run is never made active again. One run of a lineage is active at a time: retries of one
lineage are judged under the lock of its first run and of its newest.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from earnest.domain import canonical, ids
from earnest.domain.errors import Conflict, IdempotencyConflict, NotFound, UnderReview
from earnest.domain.run import NewRun, Run
from earnest.engine.process import auditing
from earnest.engine.process.actors import By, acting, name_of
from earnest.engine.process.doorbells import WORK
from earnest.engine.process.engine import Engine
from earnest.engine.runs.submitting import Submitted
from earnest.store import executions, operations, runs, standings
from earnest.store.database import Tx

NAMED = 20
"""How many operations are named that were submitted."""


async def retry(
    engine: Engine,
    scope_id: str,
    run_id: uuid.UUID,
    *,
    by: By,
    key: str | None = None,
    repeat_submitted: bool = False,
) -> Submitted:
    """A person's retry: a new run of the same lineage, revision + 1 (P22). It belongs to whoever
    asked for the old one, so that an operator who retries takes it away from nobody. Finished
    history does not change. Who retried is kept in the audit.

    A new revision sends its own operations: where something was submitted for the lineage before,
    that is refused unless `repeat_submitted`. Raises `NotFound`, `Conflict` for that and while one
    of the lineage is active or succeeded, and `UnderReview` while one of its operations is in
    doubt."""
    attempted = ids.new_id()

    async def work(tx: Tx) -> Submitted:
        old = await runs.find(tx, scope_id, run_id)
        if old is None:
            raise NotFound(f"no such run: {ids.show('run', run_id)}")
        # Retries of one lineage come one after the other: the second one finds the first.
        await executions.lock(tx, scope_id, [old.lineage_id])
        fingerprint = canonical.digest(f"retry:{old.run_id}".encode())
        stored_key = _stored_key(old, name_of(by), key)
        replay = await _replayed(tx, old, stored_key, fingerprint)
        if replay is not None:
            return replay
        revision = await _next_revision(tx, old)
        if not repeat_submitted:
            await _require_nothing_submitted(tx, old)
        new = _again(engine, old, attempted, stored_key, fingerprint)
        lineage = runs.Lineage(old.lineage_id, revision, old.run_id, name_of(by))
        run = await runs.insert(tx, new, lineage, fails_on_doubt=_fails_on_doubt(engine, old.kind))
        if run is None:
            await _replayed(tx, old, stored_key, fingerprint)
            raise Conflict("this run was just retried by somebody else; read its lineage")
        told = {"new_run_id": ids.show("run", run.run_id), "revision": revision}
        await auditing.keep(tx, acting(scope_id, by), "run.retried", ids.show("run", run_id), told)
        return Submitted(run, replayed=False)

    async def reread(tx: Tx) -> Submitted | None:
        run = await runs.find(tx, scope_id, attempted)
        return None if run is None else Submitted(run, replayed=False)

    submitted = await engine.database.promise("retry", work, reread=reread)
    engine.bells.ring(WORK)
    return submitted


def _stored_key(old: Run, by: str, key: str | None) -> str | None:
    """The key as it stands beside the new run, which is its owner's. The owner's own keys are good
    for one request, submit or retry; whoever retries for another has keys apart from them."""
    if key is None or by == old.principal_id:
        return key
    return f"retry:{canonical.digest(f'{by}/{key}'.encode()).hex()}"


async def _replayed(tx: Tx, old: Run, key: str | None, fingerprint: bytes) -> Submitted | None:
    if key is None:
        return None
    found = await runs.find_by_key(tx, old.scope_id, old.principal_id, key)
    if found is None:
        return None
    if found[1] != fingerprint:
        raise IdempotencyConflict("this key was used for another request")
    run = await runs.find(tx, old.scope_id, found[0])
    return None if run is None else Submitted(run, replayed=True)


async def _next_revision(tx: Tx, old: Run) -> int:
    """Judged under the lock of the lineage's newest run."""
    newest_id, revision = await runs.newest_revision(tx, old.scope_id, old.lineage_id)
    newest = (await executions.lock(tx, old.scope_id, [newest_id]))[newest_id]
    if not newest.final:
        raise Conflict(
            f"run {ids.show('run', newest_id)} of this lineage is {newest.status}; "
            "cancel it or wait until it ends"
        )
    if newest.status == "succeeded":
        raise Conflict(f"run {ids.show('run', newest_id)} of this lineage has succeeded")
    if newest.doubts and not newest.fails_on_doubt:
        unknown = [
            ids.show("op", operation.operation_id)
            for operation in await operations.of_run(tx, old.scope_id, newest_id)
            if operation.in_doubt
        ]
        raise UnderReview(
            f"{', '.join(unknown)} is in doubt; settle it before the run is tried again",
            fields={"operation_ids": unknown},
        )
    return revision + 1


async def _require_nothing_submitted(tx: Tx, old: Run) -> None:
    found = await standings.submitted(tx, old.scope_id, old.lineage_id, NAMED)
    if found:
        shown = [ids.show("op", one.operation_id) for one in found]
        raise Conflict(
            f"{in_one_line(found)} submitted ({', '.join(shown)}); a new revision sends again what "
            'it asks for: to do that send {"repeat_submitted": true}, or to the command add --yes',
            fields={"operation_ids": shown},
        )


def in_one_line(submitted: Sequence[standings.Submitted]) -> str:
    """Which operations they are, with their verb."""
    named = ", ".join(f"{one.name!r} ({one.kind})" for one in submitted)
    more = " and perhaps more" if len(submitted) >= NAMED else ""
    return f"operation {named} was" if len(submitted) == 1 else f"operations {named}{more} were"


def _again(
    engine: Engine,
    old: Run,
    run_id: uuid.UUID,
    key: str | None,
    fingerprint: bytes,
) -> NewRun:
    kind = engine.kinds.get(old.kind)
    return NewRun(
        scope_id=old.scope_id,
        run_id=run_id,
        kind=old.kind,
        lane=old.lane,
        principal_id=old.principal_id,
        input=canonical.encode(old.input),
        idempotency_key=key,
        fingerprint=fingerprint,
        context=old.context,
        labels=old.labels,
        priority=old.priority,
        deadline=None if kind is None else kind.deadline,
        max_attempts=old.max_attempts,
        conversation_id=old.conversation_id,
        parent_run_id=None,
    )


def _fails_on_doubt(engine: Engine, kind_name: str) -> bool:
    kind = engine.kinds.get(kind_name)
    return kind is not None and kind.on_unknown == "fail"

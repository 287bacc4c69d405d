"""Nothing of one scope refers to anything of another: the keys themselves refuse it (P12)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest

from earnest.domain import ids
from earnest.domain.access import NewToken
from earnest.domain.approval import Proposal
from earnest.store import access, approvals, runs
from earnest.store.database import Database, Tx
from tests.store.given import SCOPE, begun, insert, new_operation, new_run

THERE = "other"


@dataclass(frozen=True)
class Foreign:
    """A run and an operation of one scope, and a connection on which another scope tries."""

    tx: Tx
    run_id: uuid.UUID
    operation_id: uuid.UUID


@pytest.fixture
async def foreign(database: Database) -> AsyncIterator[Foreign]:
    new = new_run()
    async with database.connection() as tx:
        for scope_id in (SCOPE, THERE):
            await access.put_scope(tx, scope_id)
        await access.put_principal(tx, SCOPE, "alice", ["member"])
        assert await insert(tx, new)
        made = await begun(tx, run_id=new.run_id)
        yield Foreign(tx, new.run_id, made.operation_id)


REFERENCES = {
    "step": (
        "INSERT INTO step (scope_id, run_id, name, kind, digest, fence, created_at) "
        "VALUES ('other', $1, 'a', 'step', '', 1, clock())"
    ),
    "signal": (
        "INSERT INTO signal (scope_id, run_id, name, number, payload, principal_id, created_at) "
        "VALUES ('other', $1, 'go', 1, '{}', 'bob', clock())"
    ),
    "text_head": (
        "INSERT INTO text_head (scope_id, run_id, attempt, first_sequence, last_sequence, bytes) "
        "VALUES ('other', $1, 1, 1, 1, 1)"
    ),
    "approval of a run": (
        "INSERT INTO approval (scope_id, approval_id, run_id, name, proposal, digest, role, "
        "requested_at, proposer, excludes_proposer) VALUES ('other', gen_random_uuid(), $1, 'a', "
        "'1', '', 'approver', clock(), 'bob', false)"
    ),
    "operation_move": (
        "INSERT INTO operation_move (scope_id, operation_id, version, move, state, fence, by, "
        "detail, created_at) VALUES ('other', $1, 1, 'm', 's', 0, 'b', '{}', clock())"
    ),
    "operation_lookup": (
        "INSERT INTO operation_lookup (scope_id, operation_id, number, answer, detail, created_at) "
        "VALUES ('other', $1, 1, 'found', '', clock())"
    ),
    "finding": (
        "INSERT INTO finding (scope_id, finding_id, operation_id, kind, detail, created_at) "
        "VALUES ('other', gen_random_uuid(), $1, 'k', '{}', clock())"
    ),
}


async def test_an_approval_cannot_be_about_another_scopes_operation(foreign: Foreign) -> None:
    run = new_run(scope_id=THERE)
    assert await insert(foreign.tx, run)
    asked = Proposal(
        uuid.uuid4(), "refund", b"1", b"", "approver", "bob", foreign.operation_id, "bank.refund"
    )
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await approvals.put(foreign.tx, THERE, run.run_id, asked)


@pytest.mark.parametrize("table", REFERENCES)
async def test_a_row_cannot_hang_on_another_scopes_run_or_operation(
    foreign: Foreign, table: str
) -> None:
    of_run = table in ("step", "signal", "text_head", "approval of a run")
    about = foreign.run_id if of_run else foreign.operation_id
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await foreign.tx.execute(REFERENCES[table], about)
    there = REFERENCES[table].replace("'other'", f"'{SCOPE}'")
    await foreign.tx.execute(there.replace("1, 'm'", "9, 'm'"), about)


async def test_a_run_cannot_have_a_parent_in_another_scope(foreign: Foreign) -> None:
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await insert(foreign.tx, new_run(scope_id=THERE, parent_run_id=foreign.run_id))
    assert await insert(foreign.tx, new_run(parent_run_id=foreign.run_id))


async def test_a_run_cannot_be_the_retry_of_one_in_another_scope(foreign: Foreign) -> None:
    lineage = runs.Lineage(foreign.run_id, 2, foreign.run_id)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await runs.insert(foreign.tx, new_run(scope_id=THERE), lineage, fails_on_doubt=False)
    assert await runs.insert(foreign.tx, new_run(), lineage, fails_on_doubt=False)


async def test_an_operation_cannot_belong_to_another_scopes_run(foreign: Foreign) -> None:
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await begun(foreign.tx, scope_id=THERE, run_id=foreign.run_id)
    assert new_operation().run_id is None


async def test_a_token_cannot_be_made_for_another_scopes_principal(foreign: Foreign) -> None:
    new = NewToken("alice")
    assert not await access.put_token(foreign.tx, THERE, "t", bytes(32), new, "eve")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await foreign.tx.execute(
            "INSERT INTO token (token_id, scope_id, principal_id, secret_hash, created_at) "
            "VALUES ('t', 'other', 'alice', '', clock())"
        )
    assert await access.put_token(foreign.tx, SCOPE, "t", bytes(32), new, "eve")


async def test_the_same_id_in_two_scopes_are_two_runs(foreign: Foreign) -> None:
    assert await insert(foreign.tx, new_run(scope_id=THERE, run_id=foreign.run_id, kind="there"))
    here, there = [
        await runs.find(foreign.tx, scope_id, foreign.run_id) for scope_id in (SCOPE, THERE)
    ]
    assert here is not None
    assert there is not None
    assert (here.kind, there.kind) == ("work", "there")
    assert ids.show("run", here.run_id) == ids.show("run", there.run_id)

"""Tokens, principals and roles: who is let in, who is not, and what is kept of a secret."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.domain.errors import Forbidden, InvalidRequest, NotFound, Unauthenticated
from earnest.engine.process import access, principals, scopes, tokens
from earnest.engine.process.access import Doorkeeper
from earnest.engine.process.actors import Actor, Role
from earnest.engine.process.engine import Engine
from earnest.store.access import keep_setting
from earnest.store.database import Database
from earnest.testing.clock import ManualClock


@pytest.fixture
async def engine(make_engine: Callable[..., Engine]) -> Engine:
    """An engine whose scope `demo` has the principal `ann`, a member."""
    made = make_engine()
    await scopes.ensure_scope(made, "demo")
    await principals.ensure_principal(made, "demo", "ann", ["member"])
    return made


async def _id_of(engine: Engine, text: str) -> str:
    token_id, _ = access.read_token(text)
    return token_id


async def test_a_token_opens_the_door_to_its_principal(engine: Engine) -> None:
    text = await tokens.issue_token(engine, "demo", "ann")
    assert await access.authenticate(engine, text) == Actor("demo", "ann", frozenset({"member"}))


async def test_the_secret_of_a_token_is_not_in_the_database(engine: Engine) -> None:
    text = await tokens.issue_token(engine, "demo", "ann")
    secret = text.split("_")[2]
    async with engine.database.connection() as tx:
        dump = str(await tx.fetch("SELECT * FROM token"))
    assert secret[:8] not in dump


def test_two_tokens_share_neither_id_nor_secret_and_have_160_random_bits() -> None:
    texts = [access.new_token() for _ in range(200)]
    assert len({text.split("_")[1] for text in texts}) == 200
    assert len({text.split("_")[2] for text in texts}) == 200
    assert all(re.fullmatch(r"ern_[0-9a-z]{16}_[0-9a-z]{39}", text) for text in texts)


@given(st.data())
def test_every_single_wrong_letter_is_seen_without_asking_the_database(data: st.DataObject) -> None:
    text = access.new_token()
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(min_codepoint=33, max_codepoint=126))
    wrong = text[:place] + letter + text[place + 1 :]
    if wrong != text:
        with pytest.raises(Unauthenticated):
            access.read_token(wrong)


@pytest.mark.parametrize(
    "text", ["", "ern_", "Bearer", "ern_x_y", "\u0130" * 60, "ern_" + "0" * 500]
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(Unauthenticated):
        access.read_token(text)


async def test_a_well_formed_token_that_was_never_issued_is_refused(engine: Engine) -> None:
    with pytest.raises(Unauthenticated):
        await access.authenticate(engine, access.new_token())


async def test_a_known_id_with_another_secret_is_refused(engine: Engine) -> None:
    text = await tokens.issue_token(engine, "demo", "ann")
    other = access.new_token()
    head = "_".join((*text.split("_")[:2], other.split("_")[2][:32]))
    with pytest.raises(Unauthenticated):
        await access.authenticate(engine, head + access._checksum(head))


async def test_a_revoked_token_is_refused_and_revoking_twice_is_harmless(engine: Engine) -> None:
    text = await tokens.issue_token(engine, "demo", "ann")
    for _ in range(2):
        await tokens.revoke_token(engine, "demo", await _id_of(engine, text))
    with pytest.raises(Unauthenticated):
        await access.authenticate(engine, text)


async def test_a_token_cannot_be_revoked_from_another_scope(engine: Engine) -> None:
    await scopes.ensure_scope(engine, "other")
    text = await tokens.issue_token(engine, "demo", "ann")
    with pytest.raises(NotFound):
        await tokens.revoke_token(engine, "other", await _id_of(engine, text))
    assert await access.authenticate(engine, text)


async def test_a_token_ends_at_its_expiry_by_the_databases_clock(
    engine: Engine, clock: ManualClock
) -> None:
    text = await tokens.issue_token(engine, "demo", "ann", good_for=timedelta(hours=1))
    await clock.advance(minutes=59)
    assert await access.authenticate(engine, text)
    await clock.advance(minutes=1)
    with pytest.raises(Unauthenticated):
        await access.authenticate(engine, text)


async def test_a_refusal_does_not_say_why(engine: Engine, clock: ManualClock) -> None:
    expired = await tokens.issue_token(engine, "demo", "ann", good_for=timedelta(seconds=1))
    revoked = await tokens.issue_token(engine, "demo", "ann")
    await tokens.revoke_token(engine, "demo", await _id_of(engine, revoked))
    await clock.advance(seconds=2)
    said = set()
    for text in (expired, revoked, access.new_token(), "nonsense"):
        with pytest.raises(Unauthenticated) as refusal:
            await access.authenticate(engine, text)
        said.add(refusal.value.detail)
    assert len(said) == 1


async def test_new_roles_hold_for_tokens_that_were_issued_before(engine: Engine) -> None:
    text = await tokens.issue_token(engine, "demo", "ann")
    await principals.ensure_principal(engine, "demo", "ann", ["operator", "admin"])
    assert (await access.authenticate(engine, text)).roles == {"operator", "admin"}


async def test_a_principal_has_several_tokens_so_that_they_can_be_rotated(engine: Engine) -> None:
    old, new = [await tokens.issue_token(engine, "demo", "ann") for _ in range(2)]
    assert await access.authenticate(engine, old) == await access.authenticate(engine, new)
    await tokens.revoke_token(engine, "demo", await _id_of(engine, old))
    assert await access.authenticate(engine, new)


async def test_what_cannot_be_is_refused_in_one_line(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="no name for a scope"):
        await scopes.ensure_scope(engine, "No Scope")
    with pytest.raises(InvalidRequest, match="there is no role 'root'"):
        await principals.ensure_principal(engine, "demo", "ann", ["root"])
    with pytest.raises(InvalidRequest, match="1 to 100 printable"):
        await principals.ensure_principal(engine, "demo", "a\x00b", ["member"])
    with pytest.raises(NotFound, match="make it first"):
        await principals.ensure_principal(engine, "nowhere", "ann", ["member"])
    with pytest.raises(NotFound, match="make it first"):
        await tokens.issue_token(engine, "demo", "bob")


class _Counting(Database):
    """Counts the questions to the database."""

    questions = 0

    async def fetchrow(self, statement: str, *arguments: object) -> object:  # type: ignore[override]
        self.questions += 1
        return await super().fetchrow(statement, *arguments)


@pytest.fixture
async def counting(engine: Engine, database_url: str) -> AsyncIterator[Engine]:
    """The same engine on a database that counts."""
    async with _Counting(database_url, size=2, patience=5) as database:
        engine.database = database
        yield engine


def _questions(engine: Engine) -> int:
    assert isinstance(engine.database, _Counting)
    return engine.database.questions


async def test_the_doorkeeper_asks_once_for_a_caller_that_comes_often(counting: Engine) -> None:
    text = await tokens.issue_token(counting, "demo", "ann")
    doorkeeper = Doorkeeper(counting, seconds=60)
    actors = {await doorkeeper.admit(text) for _ in range(5)}
    assert len(actors) == 1
    assert _questions(counting) == 1


async def test_the_doorkeeper_never_remembers_a_refusal(counting: Engine) -> None:
    doorkeeper = Doorkeeper(counting, seconds=60)
    unknown = access.new_token()
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await doorkeeper.admit(unknown)
    assert _questions(counting) == 2


async def test_a_malformed_token_costs_no_question(counting: Engine) -> None:
    with pytest.raises(Unauthenticated):
        await Doorkeeper(counting).admit("ern_" + "0" * 55)
    assert _questions(counting) == 0


async def test_a_revocation_is_known_to_the_doorkeeper_when_its_memory_ends(engine: Engine) -> None:
    text = await tokens.issue_token(engine, "demo", "ann")
    forgetful = Doorkeeper(engine, seconds=0)
    await forgetful.admit(text)
    await tokens.revoke_token(engine, "demo", await _id_of(engine, text))
    with pytest.raises(Unauthenticated):
        await forgetful.admit(text)
    assert access.REMEMBERED_SECONDS <= 5


async def test_the_doorkeeper_never_remembers_beyond_an_expiry(
    counting: Engine, clock: ManualClock
) -> None:
    text = await tokens.issue_token(counting, "demo", "ann", good_for=timedelta(microseconds=1))
    doorkeeper = Doorkeeper(counting, seconds=60)
    await doorkeeper.admit(text)
    await clock.advance(seconds=1)
    with pytest.raises(Unauthenticated):
        await doorkeeper.admit(text)


async def test_the_doorkeepers_memory_is_bounded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "REMEMBERED_TOKENS", 3)
    doorkeeper = Doorkeeper(engine, seconds=60)
    for _ in range(5):
        await doorkeeper.admit(await tokens.issue_token(engine, "demo", "ann"))
    assert len(doorkeeper._known) == 3


@pytest.mark.parametrize(
    ("roles", "sees"), [({"member"}, "ann"), ({"operator"}, None), ({"member", "operator"}, None)]
)
def test_a_member_sees_its_own_and_an_operator_the_scopes(roles: set[str], sees: str) -> None:
    assert Actor("demo", "ann", frozenset(roles)).sees_only() == sees


@pytest.mark.parametrize("roles", [{"approver"}, {"admin"}, {"approver", "admin"}, set()])
def test_roles_do_not_include_each_other(roles: set[str]) -> None:
    actor = Actor("demo", "ann", frozenset(roles))
    with pytest.raises(NotFound):
        actor.sees_only()
    with pytest.raises(Forbidden, match="member or operator"):
        actor.require(Role.MEMBER, Role.OPERATOR)


async def test_of_many_who_store_a_setting_at_once_all_read_the_same(database: Database) -> None:
    async def keep(value: str) -> str:
        return await database.promise("access", lambda tx: keep_setting(tx, "key", value))

    kept = await asyncio.gather(*(keep(str(number)) for number in range(8)))
    assert len(set(kept)) == 1
    assert await keep("late") == kept[0]

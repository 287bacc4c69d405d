"""Tokens, principals and scopes as they are changed: rotated, keyed, raced, and never left without
somebody who rules (P7, P12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from earnest.domain.access import NewToken, RequestKey, Token
from earnest.domain.audit import AuditEntry
from earnest.domain.errors import (
    Conflict,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    PreconditionRequired,
    StaleVersion,
    Unauthenticated,
)
from earnest.engine.process import access, auditing, principals, scopes, tokens
from earnest.engine.process.access import Doorkeeper, read_token
from earnest.engine.process.actors import Actor, Role, local
from earnest.engine.process.engine import Engine
from earnest.engine.process.principals import Standing
from earnest.engine.process.tokens import Issued, Rotation
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.store.audit import AuditFilter
from earnest.testing.clock import ManualClock
from tests.engine.handlers import work

EVE = Actor("demo", "eve", frozenset({Role.ADMIN}), of_first_scope=True, token_id="t")
NOBODY = Standing(frozenset(), disabled=True)


async def _one(ctx: Any) -> int:
    return 1


@pytest.fixture
async def engine(make_engine: Callable[..., Engine]) -> Engine:
    """The scope `demo`, the first one, with the admin eve and the member ann."""
    made = make_engine(work(_one))
    await scopes.ensure_scope(made, "demo")
    await principals.ensure_principal(made, "demo", "eve", [Role.ADMIN])
    await principals.ensure_principal(made, "demo", "ann", [Role.MEMBER])
    return made


async def issued(engine: Engine, principal: str = "ann", **more: Any) -> Issued:
    return await tokens.issue(engine, EVE, NewToken(principal, **more))


async def opens(engine: Engine, text: str | None) -> bool:
    assert text is not None
    try:
        await access.authenticate(engine, text)
    except Unauthenticated:
        return False
    return True


async def told(engine: Engine, action: str | None = None) -> list[AuditEntry]:
    return await auditing.entries(engine, local("demo"), AuditFilter(action), None, 100)


async def find(engine: Engine, token: Token) -> Token:
    return await tokens.find_token(engine, EVE, token.token_id)


class LostOnce:
    """The reply to the next change is lost; it was committed."""

    lost = False

    def __call__(self, point: str) -> None:
        if point == "access.after" and not self.lost:
            self.lost = True
            raise ConnectionResetError("the reply was lost")


@pytest.fixture
def loses_a_reply(
    engine: Engine, at_points: Callable[[Callable[[str], None]], None]
) -> Iterator[None]:
    hook = LostOnce()
    at_points(hook)
    yield
    assert hook.lost


# ---- rotation ------------------------------------------------------------------------------------


async def test_both_secrets_open_during_the_overlap_and_the_new_one_after_it(
    engine: Engine, clock: ManualClock
) -> None:
    old = await issued(engine, name="laptop")
    new = await tokens.rotate(engine, EVE, old.token.token_id, Rotation(timedelta(minutes=5)))
    assert (new.token.principal_id, new.token.name) == ("ann", "laptop")
    assert new.token.replaces == old.token.token_id
    await clock.advance(minutes=4, seconds=59)
    assert await opens(engine, old.text)
    assert await opens(engine, new.text)
    await clock.advance(seconds=1)
    assert not await opens(engine, old.text)
    assert await opens(engine, new.text)


async def test_without_overlap_the_old_secret_ends_at_once(
    engine: Engine, clock: ManualClock
) -> None:
    old = await issued(engine)
    new = await tokens.rotate(engine, EVE, old.token.token_id, Rotation(timedelta(0)))
    assert not await opens(engine, old.text)
    assert await opens(engine, new.text)


async def test_a_rotation_never_prolongs_the_old_token(engine: Engine, clock: ManualClock) -> None:
    old = await issued(engine, good_for=timedelta(minutes=1))
    new = await tokens.rotate(engine, EVE, old.token.token_id, Rotation(timedelta(minutes=10)))
    assert (await find(engine, old.token)).expires_at == old.token.expires_at
    assert new.token.expires_at == old.token.expires_at, "made for as long, at the same instant"


async def test_a_rotated_token_keeps_its_idempotency_keys(engine: Engine) -> None:
    """P7: keys belong to the principal."""
    old = await issued(engine)

    async def submit(text: str | None) -> submitting.Submitted:
        assert text is not None
        actor = await access.authenticate(engine, text)
        request = Request("work", 1, key="order-17")
        return await submitting.submit(engine, actor.scope_id, actor.principal_id, request)

    first = await submit(old.text)
    new = await tokens.rotate(engine, EVE, old.token.token_id, Rotation(timedelta(0)))
    again = await submit(new.text)
    assert again.replayed
    assert again.run.run_id == first.run.run_id


async def test_of_many_who_rotate_a_token_at_once_one_does(engine: Engine) -> None:
    old = await issued(engine)
    done = await asyncio.gather(
        *(tokens.rotate(engine, EVE, old.token.token_id, Rotation()) for _ in range(8)),
        return_exceptions=True,
    )
    made = [one for one in done if isinstance(one, Issued)]
    refused = [one for one in done if isinstance(one, Conflict)]
    assert (len(made), len(refused)) == (1, 7)
    assert {one.fields["successor"] for one in refused} == {made[0].token.token_id}
    assert len(await told(engine, "token.rotated")) == 1


async def test_a_token_that_opens_nothing_is_not_rotated(engine: Engine) -> None:
    old = await issued(engine)
    await tokens.revoke(engine, EVE, old.token.token_id)
    with pytest.raises(Conflict, match="issue a new one"):
        await tokens.rotate(engine, EVE, old.token.token_id, Rotation())
    with pytest.raises(NotFound):
        await tokens.rotate(engine, EVE, "0" * 16, Rotation())
    with pytest.raises(InvalidRequest, match="between 0 and 7 days"):
        await tokens.rotate(engine, EVE, old.token.token_id, Rotation(timedelta(days=8)))


# ---- keys ----------------------------------------------------------------------------------------


async def test_the_same_key_and_request_make_one_token_and_tell_its_text_once(
    engine: Engine,
) -> None:
    """P7: many at once too."""
    asked = RequestKey("k", b"same")
    made = await asyncio.gather(
        *(tokens.issue(engine, EVE, NewToken("ann"), asked) for _ in range(8))
    )
    assert len({one.token.token_id for one in made}) == 1
    assert [one.replayed for one in made].count(False) == 1
    assert all((one.text is None) is one.replayed for one in made)
    assert len(await told(engine, "token.issued")) == 1


async def test_a_key_of_another_request_is_a_conflict(engine: Engine) -> None:
    await tokens.issue(engine, EVE, NewToken("ann"), RequestKey("k", b"one"))
    with pytest.raises(IdempotencyConflict):
        await tokens.issue(engine, EVE, NewToken("ann"), RequestKey("k", b"other"))
    other = Actor("demo", "pam", frozenset({Role.ADMIN}))
    made = await tokens.issue(engine, other, NewToken("ann"), RequestKey("k", b"other"))
    assert not made.replayed, "a key belongs to who asks"


async def test_a_refused_request_stores_no_key(engine: Engine) -> None:
    asked = RequestKey("k", b"same")
    with pytest.raises(NotFound):
        await tokens.issue(engine, EVE, NewToken("zoe"), asked)
    await principals.ensure_principal(engine, "demo", "zoe", [])
    assert not (await tokens.issue(engine, EVE, NewToken("zoe"), asked)).replayed


async def test_a_repeated_rotation_under_its_key_names_the_same_successor(engine: Engine) -> None:
    old = await issued(engine)
    asked = RequestKey("k", b"rotate")
    first, second = [
        await tokens.rotate(engine, EVE, old.token.token_id, Rotation(), asked) for _ in range(2)
    ]
    assert first.token.token_id == second.token.token_id
    assert (second.replayed, second.text) == (True, None)


async def test_a_scope_is_made_once_under_its_key(engine: Engine) -> None:
    asked = RequestKey("k", b"acme")
    first, second = [
        await scopes.create_scope(engine, EVE, "acme", admin="zoe", asked=asked) for _ in range(2)
    ]
    assert first.scope == second.scope
    assert (second.replayed, second.token) == (True, None)
    assert first.token is not None
    zoe = await access.authenticate(engine, first.token)
    assert (zoe.scope_id, zoe.principal_id, *zoe.roles) == ("acme", "zoe", "admin")
    assert not zoe.of_first_scope
    with pytest.raises(Conflict, match="already"):
        await scopes.create_scope(engine, EVE, "acme")


@pytest.mark.parametrize("asked", [None, RequestKey("k", b"acme")], ids=["no_key", "key"])
@pytest.mark.parametrize("admin", [None, "zoe"])
async def test_a_scope_whose_reply_was_lost_is_there_once_and_its_token_is_told(
    engine: Engine, loses_a_reply: None, asked: RequestKey | None, admin: str | None
) -> None:
    """P23."""
    made = await scopes.create_scope(engine, EVE, "acme", admin=admin, asked=asked)
    assert made.scope.scope_id == "acme"
    assert len(await told(engine, "scope.created")) == 2, "demo, and this one"
    if admin is None:
        return
    assert not made.replayed
    assert made.token is not None
    assert (await access.authenticate(engine, made.token)).principal_id == "zoe"


async def test_a_token_whose_reply_was_lost_is_told_all_the_same(
    engine: Engine, loses_a_reply: None
) -> None:
    """P23: its text is nowhere else."""
    made = await issued(engine)
    assert await opens(engine, made.text)
    assert len(await told(engine, "token.issued")) == 1


async def test_a_rotation_whose_reply_was_lost_is_made_once(
    engine: Engine, at_points: Callable[[Callable[[str], None]], None]
) -> None:
    """P23."""
    old = await issued(engine)
    at_points(LostOnce())
    new = await tokens.rotate(engine, EVE, old.token.token_id, Rotation())
    assert await opens(engine, new.text)
    assert len(await told(engine, "token.rotated")) == 1


# ---- who rules -----------------------------------------------------------------------------------


async def test_two_admins_who_take_the_role_from_each_other_leave_one(engine: Engine) -> None:
    await principals.ensure_principal(engine, "demo", "pam", [Role.ADMIN])
    member = Standing(frozenset({"member"}))
    done = await asyncio.gather(
        principals.set_principal(engine, EVE, "eve", member, 1),
        principals.set_principal(engine, EVE, "pam", member, 1),
        return_exceptions=True,
    )
    assert [type(one) for one in done].count(Conflict) == 1
    left = await principals.list_principals(engine, EVE, None, 10)
    assert sum("admin" in one.roles for one in left) == 1


async def test_the_last_admin_is_neither_demoted_nor_disabled(engine: Engine) -> None:
    for wanted in (NOBODY, Standing(frozenset()), Standing(frozenset({"operator"}))):
        with pytest.raises(Conflict, match="last admin of scope demo: make another one first"):
            await principals.set_principal(engine, EVE, "eve", wanted, 1)
    assert await told(engine, "principal.changed") == []


async def test_the_last_way_in_for_an_admin_is_not_revoked_by_accident(engine: Engine) -> None:
    only = await issued(engine, "eve")
    with pytest.raises(Conflict, match="no admin could come in"):
        await tokens.revoke(engine, EVE, only.token.token_id)
    await issued(engine, "ann")
    with pytest.raises(Conflict):
        await tokens.revoke(engine, EVE, only.token.token_id)
    fresh = await tokens.rotate(engine, EVE, only.token.token_id, Rotation(timedelta(0)))
    assert not await opens(engine, only.text)
    await tokens.revoke(engine, local("demo"), fresh.token.token_id)


async def test_a_principal_is_changed_by_who_looked_at_it(engine: Engine) -> None:
    operator = Standing(frozenset({"operator"}))
    with pytest.raises(PreconditionRequired):
        await principals.set_principal(engine, EVE, "ann", operator, None)
    with pytest.raises(StaleVersion):
        await principals.set_principal(engine, EVE, "ann", operator, 7)
    changed = await principals.set_principal(engine, EVE, "ann", operator, 1)
    assert (changed.roles, changed.version) == (["operator"], 2)
    again = await principals.set_principal(engine, EVE, "ann", operator, 1)
    assert again == changed, "what is so already is harmless to ask for"
    assert len(await told(engine, "principal.changed")) == 1
    with pytest.raises(StaleVersion, match="is not there"):
        await principals.set_principal(engine, EVE, "zoe", operator, 1)
    assert (await principals.set_principal(engine, EVE, "zoe", operator, None)).version == 1


async def test_the_tokens_of_who_is_disabled_open_nothing_and_none_is_issued(
    engine: Engine,
) -> None:
    made = await issued(engine)
    off = await principals.set_principal(engine, EVE, "ann", NOBODY, 1)
    assert off.disabled_at is not None
    assert not await opens(engine, made.text)
    assert await tokens.list_tokens(engine, EVE, "ann", None, 10, live=True) == []
    with pytest.raises(Conflict, match="opens nothing any more"):
        await tokens.rotate(engine, EVE, made.token.token_id, Rotation())
    with pytest.raises(NotFound, match="may have a token"):
        await issued(engine)
    with pytest.raises(InvalidRequest, match="no roles"):
        await principals.set_principal(
            engine, EVE, "ann", Standing(frozenset({"member"}), disabled=True), 2
        )
    await principals.set_principal(engine, EVE, "ann", Standing(frozenset({"member"})), 2)
    assert await opens(engine, made.text)


async def test_the_scope_made_first_is_the_first_one_and_stays_it(engine: Engine) -> None:
    await asyncio.gather(*(scopes.ensure_scope(engine, f"later-{n}") for n in range(4)))
    first = await access.authenticate(engine, (await issued(engine, "eve")).text or "")
    await principals.ensure_principal(engine, "later-0", "hal", [Role.ADMIN])
    later = await access.authenticate(engine, await tokens.issue_token(engine, "later-0", "hal"))
    assert (first.of_first_scope, later.of_first_scope) == (True, False)
    first.require_first_scope()
    with pytest.raises(Forbidden, match="first scope's admins"):
        later.require_first_scope()


# ---- who may -------------------------------------------------------------------------------------


def _verbs(engine: Engine, actor: Actor) -> dict[str, Any]:
    """All that only an admin does."""
    return {
        "issue": tokens.issue(engine, actor, NewToken("ann")),
        "rotate": tokens.rotate(engine, actor, "0" * 16, Rotation()),
        "revoke": tokens.revoke(engine, actor, "0" * 16),
        "find_token": tokens.find_token(engine, actor, "0" * 16),
        "list_tokens": tokens.list_tokens(engine, actor, None, None, 10),
        "set_principal": principals.set_principal(engine, actor, "ann", NOBODY, 1),
        "find_principal": principals.find_principal(engine, actor, "ann"),
        "list_principals": principals.list_principals(engine, actor, None, 10),
        "create_scope": scopes.create_scope(engine, actor, "acme"),
        "list_scopes": scopes.list_scopes(engine, actor, None, 10),
        "entries": auditing.entries(engine, actor, AuditFilter(), None, 10),
    }


@pytest.mark.parametrize("role", [Role.MEMBER, Role.APPROVER, Role.OPERATOR])
async def test_no_other_role_includes_what_an_admin_may(engine: Engine, role: Role) -> None:
    """P12: asked of the verb itself, whatever door it stands behind."""
    before = await told(engine)
    verbs = _verbs(engine, Actor("demo", "x", frozenset({role}), True))
    done = await asyncio.gather(*verbs.values(), return_exceptions=True)
    assert {type(one) for one in done} == {Forbidden}, dict(zip(verbs, done, strict=True))
    assert await told(engine) == before


async def test_an_admin_of_another_scope_reaches_nothing_here(engine: Engine) -> None:
    """P12."""
    await scopes.ensure_scope(engine, "other")
    hal = Actor("other", "hal", frozenset({Role.ADMIN}))
    made = await issued(engine)
    for verb in (
        tokens.rotate(engine, hal, made.token.token_id, Rotation()),
        tokens.revoke(engine, hal, made.token.token_id),
        tokens.find_token(engine, hal, made.token.token_id),
        principals.find_principal(engine, hal, "ann"),
        tokens.issue(engine, hal, NewToken("ann")),
    ):
        with pytest.raises(NotFound):
            await verb
    with pytest.raises(Forbidden):
        await scopes.create_scope(engine, hal, "acme")
    with pytest.raises(Forbidden):
        await scopes.list_scopes(engine, hal, None, 9)
    assert await tokens.list_tokens(engine, hal, None, None, 10) == []
    assert await principals.list_principals(engine, hal, None, 10) == []
    assert await opens(engine, made.text)


async def test_no_list_holds_a_secret(engine: Engine) -> None:
    """P21."""
    made = await issued(engine)
    assert made.text is not None
    digest = read_token(made.text)[1]
    listed = await tokens.list_tokens(engine, EVE, None, None, 10)
    for shown in (str(listed), str(await told(engine))):
        assert made.text.split("_")[2] not in shown
        assert digest.hex() not in shown
        assert str(digest) not in shown


async def test_the_day_of_the_last_use_is_written_once_a_day(
    engine: Engine, clock: ManualClock
) -> None:
    made = await issued(engine)
    assert (await find(engine, made.token)).used_on is None
    doorkeeper = Doorkeeper(engine, seconds=0)
    days = []
    for _ in range(2):
        for _ in range(3):
            await doorkeeper.admit(made.text or "")
        days.append((await find(engine, made.token)).used_on)
        await clock.advance(days=1)
    first, second = days
    assert first is not None
    assert second == first + timedelta(days=1)


async def test_a_busy_token_lets_its_holder_in_all_the_same(engine: Engine) -> None:
    """Somebody sits on the token's row; the day of its use is not worth a wait."""
    made = await issued(engine)
    async with engine.database.connection() as tx, tx.transaction():
        await tx.execute("SELECT FROM token WHERE token_id = $1 FOR UPDATE", made.token.token_id)
        actor = await Doorkeeper(engine).admit(made.text or "")
    assert actor.principal_id == "ann"
    assert (await find(engine, made.token)).used_on is None


async def test_tokens_are_listed_newest_first_by_page_and_narrowed(
    engine: Engine, clock: ManualClock
) -> None:
    made = []
    for number in range(5):
        made.append((await issued(engine, "ann" if number % 2 else "eve")).token)
        await clock.advance(seconds=number % 2)  # some are of the same instant
    by_place = sorted(made, key=lambda one: (one.created_at, one.token_id), reverse=True)
    page = await tokens.list_tokens(engine, EVE, None, None, 2)
    rest = await tokens.list_tokens(engine, EVE, None, (page[-1].created_at, page[-1].token_id), 10)
    assert [one.token_id for one in page + rest] == [one.token_id for one in by_place]
    assert {one.principal_id for one in await tokens.list_tokens(engine, EVE, "eve", None, 9)} == {
        "eve"
    }
    await tokens.revoke(engine, EVE, made[1].token_id)
    live = await tokens.list_tokens(engine, EVE, None, None, 10, live=True)
    assert made[1].token_id not in {one.token_id for one in live}
    assert len(live) == 4

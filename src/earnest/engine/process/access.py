"""Who acts: scopes, principals with roles, and the tokens by which a door knows them.

A token reads `ern_<id>_<secret><check>`: 16 letters to find it by, 32 letters (160 random bits)
that are the secret, and 7 letters of checksum, so that a mistyped one is refused without a question
to the database. Only the SHA-256 of the text is stored; the text is shown once.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from datetime import timedelta

from earnest.domain.errors import InvalidRequest, NotFound, Unauthenticated
from earnest.engine.process.actors import Actor, Role
from earnest.engine.process.engine import Engine
from earnest.store import access
from earnest.store.database import Tx

# Crockford's base 32 in lower case: no letter looks like another one or like a digit.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID, _SECRET, _CHECK = 16, 32, 7
_TOKEN = re.compile(rf"ern_([{_ALPHABET}]{{{_ID}}})_[{_ALPHABET}]{{{_SECRET}}}[{_ALPHABET}]{{7}}")
_SCOPE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")

REMEMBERED_SECONDS = 2.0
REMEMBERED_TOKENS = 10_000


# ---- scopes and principals ---------------------------------------------------------------------


async def ensure_scope(engine: Engine, scope_id: str) -> None:
    """Makes the scope unless it is there. Raises `InvalidRequest` for an impossible name."""
    _check_scope(scope_id)

    async def work(tx: Tx) -> None:
        await access.put_scope(tx, scope_id)

    await engine.database.promise("access", work)


async def register(engine: Engine, scope_id: str, principal_id: str) -> None:
    """Makes the scope and the principal unless they are there; a new principal has no roles. What a
    program does in its scope is seen by whoever looks for it there (P3), whoever made the scope.
    Raises `InvalidRequest` for impossible names."""
    _check_scope(scope_id)
    _check_principal(principal_id)

    async def work(tx: Tx) -> None:
        await access.put_scope(tx, scope_id)
        await access.put_new_principal(tx, scope_id, principal_id)

    await engine.database.promise("access", work)


async def require_scope(engine: Engine, scope_id: str) -> None:
    """Raises `NotFound` for a scope that is not there, before anything is done in it, and
    `InvalidRequest` for an impossible name."""
    _check_scope(scope_id)
    if not await access.has_scope(engine.database, scope_id):
        raise NotFound(
            f"there is no scope {scope_id[:80]!r}, so nothing was done. A scope is made by a "
            "program that opens Earnest with it, or by `earnest tokens issue NAME --role member "
            "--new-scope --scope SCOPE`"
        )


def _check_scope(scope_id: object) -> None:
    if not isinstance(scope_id, str) or not _SCOPE.fullmatch(scope_id):
        raise InvalidRequest(
            f"{str(scope_id)[:80]!r} is no name for a scope: 1 to 63 lower-case letters, digits, "
            "`_`, `.` or `-`, the first a letter or digit"
        )


def _check_principal(principal_id: str) -> None:
    if not 1 <= len(principal_id) <= 100 or not principal_id.isprintable():
        raise InvalidRequest("a principal's name has 1 to 100 printable characters")


async def ensure_principal(
    engine: Engine, scope_id: str, principal_id: str, roles: Iterable[str]
) -> None:
    """Makes the principal, or gives it exactly these roles. Raises `InvalidRequest` for an
    impossible name or role, `NotFound` for a scope that is not there."""
    asked = set(roles)
    for role in sorted(asked - set(Role)):
        raise InvalidRequest(f"there is no role {role[:80]!r}; there are: {', '.join(Role)}")
    _check_principal(principal_id)

    async def work(tx: Tx) -> bool:
        return await access.put_principal(tx, scope_id, principal_id, asked)

    if not await engine.database.promise("access", work):
        raise NotFound(f"there is no scope {scope_id[:80]!r}; make it first")


# ---- tokens ------------------------------------------------------------------------------------


async def issue_token(
    engine: Engine, scope_id: str, principal_id: str, *, good_for: timedelta | None = None
) -> str:
    """A new token of a principal. Its text is returned once and can never be read again. Raises
    `NotFound` for a principal that is not there."""
    text = new_token()
    token_id, digest = read_token(text)

    async def work(tx: Tx) -> bool:
        return await access.put_token(tx, token_id, scope_id, principal_id, digest, good_for)

    if not await engine.database.promise("access", work):
        raise NotFound(
            f"scope {scope_id[:80]!r} has no principal {principal_id[:80]!r}; make it first"
        )
    return text


async def revoke_token(engine: Engine, scope_id: str, token_id: str) -> None:
    """From now on (within two seconds in processes that know it) the token opens nothing. Harmless
    when repeated. Raises `NotFound`."""

    async def work(tx: Tx) -> bool:
        return await access.revoke_token(tx, scope_id, token_id)

    if not await engine.database.promise("access", work):
        raise NotFound("there is no such token")


async def authenticate(engine: Engine, text: str) -> Actor:
    """Who a token belongs to. Raises `Unauthenticated`, whose text does not say whether the token
    was mistyped, unknown, revoked or expired."""
    actor, _ = await _look_up(engine, text)
    return actor


class Doorkeeper:
    """Authenticates, and remembers for `seconds` whom it let in, so that a caller that comes often
    does not cost a query each time. A refusal is never remembered, an expiry never passed."""

    def __init__(self, engine: Engine, seconds: float = REMEMBERED_SECONDS) -> None:
        self._engine = engine
        self._seconds = seconds
        self._known: OrderedDict[bytes, tuple[float, Actor]] = OrderedDict()

    async def admit(self, text: str) -> Actor:
        """As `authenticate`; a revocation is known here after `seconds` at the latest."""
        key = hashlib.sha256(text.encode()).digest()
        until, actor = self._known.get(key, (0.0, None))
        asked_at = time.monotonic()
        if actor is not None and asked_at < until:
            return actor
        self._known.pop(key, None)
        actor, remaining = await _look_up(self._engine, text)
        good_for = self._seconds if remaining is None else min(self._seconds, remaining)
        self._remember(key, asked_at + good_for, actor)
        return actor

    def _remember(self, key: bytes, until: float, actor: Actor) -> None:
        self._known[key] = (until, actor)
        while len(self._known) > REMEMBERED_TOKENS:
            self._known.popitem(last=False)


def new_token() -> str:
    token_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID))
    secret = "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET))
    head = f"ern_{token_id}_{secret}"
    return head + _checksum(head)


def read_token(text: str) -> tuple[str, bytes]:
    """The id and the digest of a well-formed token. Raises `Unauthenticated`; asks nobody."""
    match = _TOKEN.fullmatch(text)
    if match is None or _checksum(text[:-_CHECK]) != text[-_CHECK:]:
        raise _refusal()
    return match[1], hashlib.sha256(text.encode()).digest()


async def _look_up(engine: Engine, text: str) -> tuple[Actor, float | None]:
    token_id, digest = read_token(text)
    stored = await access.find_token(engine.database, token_id)
    # An unknown id is compared as well: how long a refusal takes says nothing.
    expected = bytes(32) if stored is None else stored.digest
    if not hmac.compare_digest(expected, digest) or stored is None:
        raise _refusal()
    actor = Actor(
        stored.scope_id, stored.principal_id, stored.roles, stored.of_first_scope, token_id
    )
    return actor, stored.remaining


def _checksum(head: str) -> str:
    number = zlib.crc32(head.encode())
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(30, -1, -5))


def _refusal() -> Unauthenticated:
    return Unauthenticated("no valid token; send `Authorization: Bearer ern_…`")

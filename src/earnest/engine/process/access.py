"""Who is let in: how a token reads, and to whom it opens the door.

A token reads `ern_<id>_<secret><check>`: 16 letters to find it by, 32 letters (160 random bits)
that are the secret, and 7 letters of checksum, so that a mistyped one is refused without a question
to the database. Only the SHA-256 of the text is stored; the text is shown once.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import secrets
import time
import zlib
from collections import OrderedDict

from earnest.domain.errors import Busy, Unauthenticated
from earnest.engine.process.actors import Actor
from earnest.engine.process.engine import Engine
from earnest.store import access
from earnest.store.access import StoredToken
from earnest.store.database import BUSY, Tx

# Crockford's base 32 in lower case: no letter looks like another one or like a digit.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID, _SECRET, _CHECK = 16, 32, 7
_TOKEN = re.compile(rf"ern_([{_ALPHABET}]{{{_ID}}})_[{_ALPHABET}]{{{_SECRET}}}[{_ALPHABET}]{{7}}")

REMEMBERED_SECONDS = 2.0
REMEMBERED_TOKENS = 10_000


async def authenticate(engine: Engine, text: str) -> Actor:
    """Who a token belongs to. Raises `Unauthenticated`, whose text does not say whether the token
    was mistyped, unknown, revoked or expired."""
    return _actor(await _look_up(engine, text))


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
        stored = await _look_up(self._engine, text)
        if stored.first_use_today:
            await _note_use(self._engine, stored.token_id)
        actor, remaining = _actor(stored), stored.remaining
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


async def _look_up(engine: Engine, text: str) -> StoredToken:
    token_id, digest = read_token(text)
    stored = await access.find_token(engine.database, token_id)
    # An unknown id is compared as well: how long a refusal takes says nothing.
    expected = bytes(32) if stored is None else stored.digest
    if not hmac.compare_digest(expected, digest) or stored is None:
        raise _refusal()
    return stored


def _actor(stored: StoredToken) -> Actor:
    return Actor(
        stored.scope_id,
        stored.principal_id,
        stored.roles,
        of_first_scope=stored.of_first_scope,
        token_id=stored.token_id,
    )


async def _note_use(engine: Engine, token_id: str) -> None:
    """Once a day for each token. Whoever comes in is not kept waiting for it, nor turned away."""

    async def work(tx: Tx) -> None:
        await access.note_use_of_token(tx, token_id)

    with contextlib.suppress(Busy, *BUSY):
        await engine.database.promise("access", work, patience=0, sat_on=0, one_statement=True)


def _checksum(head: str) -> str:
    number = zlib.crc32(head.encode())
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(30, -1, -5))


def _refusal() -> Unauthenticated:
    return Unauthenticated("no valid token; send `Authorization: Bearer ern_…`")

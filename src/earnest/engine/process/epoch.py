"""The epoch: a short word for one life of the database, and the positions that carry it.

An event's number alone does not say what was read: after a restore, or a failover that lost the
last commits, the same number may stand for another event. So a position that is handed out names
the epoch with the number, and one of another epoch is never taken for one of this.

The word is kept in the database beside what the server said of itself (its system identifier and
its timeline). When the server says something else, or when somebody who restored it says so, a new
word is made. A server that may not be asked keeps its word.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from earnest.domain.errors import InvalidRequest
from earnest.engine.process.engine import Engine
from earnest.store import epochs
from earnest.store.database import Tx

_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 8
_UNKNOWN = "-"
_POSITION = re.compile(r"(?:([0-9a-z]{1,16})-)?([0-9]{1,19})", re.ASCII)
_GREATEST = 2**63 - 1

# What is promised to be a place; a few larger numbers are taken, too.
POSITION_PATTERN = "^([0-9a-z]{1,16}-)?([0-9]{1,18}|[0-8][0-9]{18})$"


@dataclass(frozen=True, slots=True)
class Position:
    """After which event of a run a reader goes on; without an epoch, it is that of today."""

    seq: int
    epoch: str | None = None

    def is_of(self, epoch: str) -> bool:
        return self.epoch is None or self.epoch == epoch


def read_position(text: str) -> Position:
    """A bare number, or `<epoch>-<number>`. Raises `InvalidRequest` for any other text."""
    match = _POSITION.fullmatch(text)
    if match is None or int(match[2]) > _GREATEST:
        raise InvalidRequest("a place among events is a number from 0, or <epoch>-<number>")
    return Position(int(match[2]), match[1])


async def find_epoch(engine: Engine) -> str:
    """The word of this life of the database; made when the server is not the one it was."""
    identity = await epochs.server_identity(engine.database)
    stored = await epochs.find(engine.database)
    if stored is not None and _settled(stored, identity) == stored:
        return stored.split()[0]
    return await _change(engine, identity, new=False)


async def begin_epoch(engine: Engine) -> str:
    """A new word, whatever the server says of itself: the database was restored. Other processes
    know it when they look next."""
    return await _change(engine, await epochs.server_identity(engine.database), new=True)


async def _change(engine: Engine, identity: str | None, *, new: bool) -> str:
    fresh = _fresh(identity)

    async def work(tx: Tx) -> str:
        def settled(stored: str) -> str:
            return fresh if new else _settled(stored, identity)

        return await epochs.change(tx, fresh, settled)

    return (await engine.database.promise("epoch", work)).split()[0]


def _settled(stored: str, identity: str | None) -> str:
    """What must be stored, given what is and what the server says now."""
    word, known = stored.split()
    if identity is None or identity == known:
        return stored
    return f"{word} {identity}" if known == _UNKNOWN else _fresh(identity)


def _fresh(identity: str | None) -> str:
    word = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
    return f"{word} {identity or _UNKNOWN}"

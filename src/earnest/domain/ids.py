"""Ids: UUIDs inside, TypeIDs outside, and the ids that derive from others.

An id that derives (a child from its parent and name, an operation from its run and name, an
attempt from its run and fence) is the same in every process and every attempt, so asking twice can
never make two. Sources: RFC 9562 (UUID versions 5 and 7), TypeID specification 0.3.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Literal

import uuid_utils
import uuid_utils.compat as uuid7_source
from typeid import TypeID

from earnest.domain.errors import NotFound

Prefix = Literal[
    "run", "att", "op", "find", "inst", "art", "aud", "apr", "sink", "msg", "dlv", "sweep", "diff"
]

_NOUNS: dict[Prefix, str] = {
    "run": "run",
    "att": "attempt",
    "op": "operation",
    "find": "finding",
    "inst": "instance",
    "sink": "sink",
    "msg": "message",
    "dlv": "delivery",
    "apr": "approval",
    "aud": "audit entry",
    "art": "artifact",
    "sweep": "sweep",
    "diff": "difference",
}
_OPERATION_ALONE = uuid.UUID("0b6f3d1e-6c35-5c3a-9a53-8f8f5e1c2d10")


def new_id() -> uuid.UUID:
    """A time-ordered id (UUIDv7)."""
    return uuid7_source.uuid7()


def new_token() -> uuid.UUID:
    """A random token (UUIDv4): owner tokens and send tokens must not be guessable from others."""
    return uuid.uuid4()


def child_id(parent: uuid.UUID, name: str) -> uuid.UUID:
    return _derived(parent, f"child:{name}")


def operation_id(run: uuid.UUID, name: str) -> uuid.UUID:
    return _derived(run, f"operation:{name}")


def approval_id(run: uuid.UUID, name: str) -> uuid.UUID:
    """Of a decision that a handler asks for by its own name."""
    return _derived(run, f"approval:{name}")


def operation_approval_id(operation: uuid.UUID) -> uuid.UUID:
    """Of the decision without which the operation is not begun."""
    return _derived(operation, "approval")


def standing_operation_id(scope_id: str, principal_id: str, kind: str, key: str) -> uuid.UUID:
    """The id of an operation without a run: same scope, principal, kind and key, same id."""
    return uuid.uuid5(_OPERATION_ALONE, "\x1f".join((scope_id, principal_id, kind, key)))


def event_message_id(run: uuid.UUID, seq: int) -> uuid.UUID:
    """The id under which an event is told outside: the same to every sink, in every attempt."""
    return _derived(run, f"event:{seq}")


def published_message_id(run: uuid.UUID, name: str) -> uuid.UUID:
    """The id of what a run publishes under a name of its own."""
    return _derived(run, f"message:{name}")


def attempt_id(run: uuid.UUID, fence: int) -> uuid.UUID:
    return _derived(run, f"attempt:{fence}")


def _derived(source: uuid.UUID, name: str) -> uuid.UUID:
    """A UUIDv7 that carries its source's time, so that lists by id keep what belongs together
    together, and 74 bits of a hash where a fresh one would be random."""
    digest = int.from_bytes(hashlib.sha256(source.bytes + name.encode()).digest()[:16], "big")
    value = (source.int >> 80) << 80 | digest & ((1 << 80) - 1)
    value = value & ~(0xF << 76) | 7 << 76
    return uuid.UUID(int=value & ~(0x3 << 62) | 2 << 62)


def show(prefix: Prefix, value: uuid.UUID) -> str:
    """The TypeID that people and programs outside see, such as `run_01h455vb4pex5vsknk084sn02q`."""
    return str(TypeID.from_uuid(uuid_utils.UUID(int=value.int), prefix))


def read(prefix: Prefix, text: str) -> uuid.UUID:
    """The UUID in a TypeID. Raises `NotFound` for anything else: foreign, malformed and unknown
    ids must look the same from outside."""
    try:
        parsed = TypeID.from_string(text)
        if parsed.prefix == prefix:
            return uuid.UUID(int=parsed.uuid.int)
    except Exception as error:
        raise NotFound(f"no such {_NOUNS[prefix]}: {text[:80]!r}") from error
    raise NotFound(f"no such {_NOUNS[prefix]}: {text[:80]!r}")

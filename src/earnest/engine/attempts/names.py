"""Names inside a run: how a later attempt finds again what an earlier one did.

Names resolve at once, in the order in which the handler asks; a repeated name gets `#2`, `#3`.
That order is the same in every attempt only where the handler is sequential. A name that is
repeated by another branch that runs beside the first needs an explicit key.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field

from earnest.domain.canonical import storable
from earnest.domain.errors import InvalidRequest, NameNeeded

MAX_NAME = 200

# The thread of a plain handler in which a verb was asked for; the verb runs on the event loop.
asked_in: ContextVar[threading.Thread | None] = ContextVar("asked_in", default=None)


@dataclass(slots=True)
class _Uses:
    count: int = 0
    branches: set[object] = field(default_factory=set)


class Names:
    """The names used so far in one attempt. Steps, operations, children and waits have each their
    own room, so that a step and an operation may share a name."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str], _Uses] = {}
        self._taken: set[tuple[str, str]] = set()

    def resolve(self, room: str, name: str, key: str | None = None) -> str:
        """The stored name. Raises `NameNeeded` for a name repeated in parallel without a key, and
        for a key that was used before."""
        if not _is_name(name):
            raise InvalidRequest(
                f"a name has 1 to {MAX_NAME} characters, as a text without #: {str(name)[:80]!r}"
            )
        if key is not None:
            if not 1 <= len(str(key)) <= MAX_NAME or not storable(str(key)):
                raise InvalidRequest(f"a key has 1 to {MAX_NAME} characters: {str(key)[:80]!r}")
            return self._take(room, f"{name}#{key}", f"the key {key!r} of {name!r} was used before")
        uses = self._uses.setdefault((room, name), _Uses())
        branch = _branch()
        if any(other is not branch and _goes_on(other) for other in uses.branches):
            raise NameNeeded(
                f"{name!r} is asked for in parallel branches; their order may change between "
                "attempts: give each an explicit key= (steps: keyed_step)"
            )
        uses.branches.add(branch)
        uses.count += 1
        own = name if uses.count == 1 else f"{name}#{uses.count}"
        return self._take(
            room, own, f"the key '{uses.count}' of {name!r} stands for its repetition"
        )

    def _take(self, room: str, name: str, refusal: str) -> str:
        if (room, name) in self._taken:
            raise NameNeeded(f"{refusal}; give each its own")
        self._taken.add((room, name))
        return name


def _is_name(name: object) -> bool:
    return (
        isinstance(name, str) and 1 <= len(name) <= MAX_NAME and "#" not in name and storable(name)
    )


def _branch() -> object:
    """What asks: a thread of a plain handler, or a task of the event loop."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return asked_in.get() or task or threading.current_thread()


def _goes_on(branch: object) -> bool:
    if isinstance(branch, asyncio.Task):
        return not branch.done()
    return isinstance(branch, threading.Thread) and branch.is_alive()

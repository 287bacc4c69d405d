"""Binding: which engine, scope and principal a program acts through when it does not say so.

A web application opens Earnest once, at start, and then says only what it wants; the binding is
per process. Callers that block have an engine of their own, on its own event loop, and act through
it alone. Doors never use this: they name engine, scope and principal in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from earnest.domain.errors import SettingInvalid
from earnest.engine.process import scopes
from earnest.engine.process.engine import Engine


@dataclass(frozen=True, slots=True)
class Binding:
    """Where the verbs of a program go."""

    engine: Engine
    scope_id: str
    principal_id: str


async def make(engine: Engine, scope_id: str, principal_id: str) -> Binding:
    """A binding whose scope and principal are there. Raises `InvalidRequest` for impossible names:
    then nothing is done under them."""
    await scopes.register(engine, scope_id, principal_id)
    return Binding(engine, scope_id, principal_id)


_bound: list[Binding] = []
_here: ContextVar[Binding | None] = ContextVar("earnest_binding", default=None)


_refusals: list[Callable[[], BaseException]] = []


@contextmanager
def refusing(refusal: Callable[[], BaseException]) -> Iterator[None]:
    """Meanwhile no thread of this process acts through a binding of its program, or opens one:
    `refusal` makes what is raised instead. A process that only checks is such a one."""
    _refusals.append(refusal)
    try:
        yield
    finally:
        _refusals.remove(refusal)


def require_allowed() -> None:
    """Raises what `refusing` was given, if it was."""
    if _refusals:
        raise _refusals[-1]()


def bind(binding: Binding) -> None:
    _bound.append(binding)


def unbind(binding: Binding) -> None:
    if binding in _bound:
        _bound.remove(binding)


@contextmanager
def acting_through(binding: Binding) -> Iterator[None]:
    """Meanwhile this task, and what it starts, acts through that binding and no other."""
    token = _here.set(binding)
    try:
        yield
    finally:
        _here.reset(token)


def current() -> Binding:
    """The binding that this task acts through, else the one opened last in the process. Raises
    `SettingInvalid` when there is none."""
    if (here := _here.get()) is not None:
        return here
    require_allowed()
    if not _bound:
        raise SettingInvalid(
            "Earnest is not open in this process: wrap it in `async with earnest.open(app):`; code "
            "without `await` uses `earnest.blocking(app)`"
        )
    return _bound[-1]

"""Binding: which engine, scope and principal a program acts through when it does not say so.

A web application opens Earnest once, at start, and then says only what it wants; the binding is
per process. Doors never use it: they name engine, scope and principal in every call.
"""

from __future__ import annotations

from dataclasses import dataclass

from earnest.domain.errors import SettingInvalid
from earnest.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Binding:
    """Where the verbs of a program go."""

    engine: Engine
    scope_id: str
    principal_id: str


_bound: list[Binding] = []


def bind(binding: Binding) -> None:
    _bound.append(binding)


def unbind(binding: Binding) -> None:
    if binding in _bound:
        _bound.remove(binding)


def current() -> Binding:
    """The binding opened last. Raises `SettingInvalid` when there is none."""
    if not _bound:
        raise SettingInvalid(
            "Earnest is not open in this process: wrap it in `async with earnest.open(app):`"
        )
    return _bound[-1]

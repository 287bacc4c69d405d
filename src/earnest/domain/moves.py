"""A table of legal moves: data, to which code, tests and the docs' tables are held."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Move(Generic[StateT]):
    """One legal move: from any of `sources` (none: it begins there) to any of `targets`, made by
    `by`, where that is not always the same."""

    name: str
    sources: frozenset[StateT]
    targets: frozenset[StateT]
    by: str


def table(
    states: type[StateT], rows: Iterable[tuple[str, str, str] | tuple[str, str, str, str]]
) -> dict[str, Move[StateT]]:
    """The moves by name. A row is the name, its sources and targets as words between blanks, and
    by whom it is made."""

    def named(words: str) -> frozenset[StateT]:
        return frozenset(states(word) for word in words.split())

    return {
        name: Move(name, named(sources), named(targets), "".join(by))
        for name, sources, targets, *by in rows
    }

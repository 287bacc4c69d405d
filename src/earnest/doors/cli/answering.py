"""How a command answers: one JSON document where that was asked for, else what people read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from earnest.doors.cli import screen

T = TypeVar("T")

Row = Callable[[T], Sequence[object]]
AsObject = Callable[[T], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Answering:
    """Knows whether JSON was asked for."""

    as_json: bool

    def print_rows(
        self, columns: Sequence[str], found: Iterable[T], row: Row[T], as_object: AsObject[T]
    ) -> None:
        """Several of a kind: `{"items": […]}`, or a table."""
        if self.as_json:
            screen.print_json({"items": [as_object(one) for one in found]})
        else:
            screen.print_table(columns, [row(one) for one in found])

    def print_row(
        self, columns: Sequence[str], found: T, row: Row[T], as_object: AsObject[T]
    ) -> None:
        """One of a kind that commands also list: its object, or a table of one row."""
        if self.as_json:
            screen.print_json(as_object(found))
        else:
            screen.print_table(columns, [row(found)])

    def print_facts(self, facts: Mapping[str, object], *, left_out: Collection[str] = ()) -> None:
        """The object, or its members below each other without those that people need not see."""
        if self.as_json:
            screen.print_json(facts)
        else:
            screen.print_facts({name: facts[name] for name in facts if name not in left_out})

    def print_line(self, document: Mapping[str, Any], line: str) -> None:
        """The document, or a line that may hold markup; escape what comes from outside."""
        if self.as_json:
            screen.print_json(document)
        else:
            screen.say(line)

"""What a command prints: JSON where it is asked for, else tables and lines for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_WIDE = 200  # columns where nobody looks through a window: ids must not be cut
_COLOURS = {
    "succeeded": "green",
    "submitted": "green",
    "approved": "green",
    "rejected": "red",
    "failed": "red",
    "incomplete": "bold yellow",
    "complete": "green",
    "open": "bold yellow",
    "closed": "dim",
    "vanished": "dim",
    "blocked": "red",
    "unknown": "bold yellow",
    "running": "cyan",
    "submitting": "cyan",
    "cancelled": "dim",
    "released": "dim",
    "ok": "green",
    "fits": "green",
    "warn": "yellow",
    "unclear": "yellow",
    "bad": "bold red",
    "breaks": "bold red",
}


@cache
def console() -> Console:
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDE)


def print_json(value: Any) -> None:
    """One indented document."""
    print(_escaped(msgspec.json.format(msgspec.json.encode(value), indent=2)))  # noqa: T201


def print_json_line(value: Any) -> None:
    """One document on one line, written out at once."""
    print(_escaped(msgspec.json.encode(value)), flush=True)  # noqa: T201


def _escaped(document: bytes) -> str:
    """The same document; what a terminal could take for an order is written as an escape."""
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1]
        for one in document.decode()
    )


def say(line: str) -> None:
    """A line that may hold markup; escape what comes from outside."""
    console().print(line, soft_wrap=True)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error while something takes long, if a person looks; yields what advances
    it by one."""
    from rich.progress import Progress

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def progress_of_bytes(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """As `progress`, for bytes; yields what advances it by so many. `None`: nobody knows how many
    there will be."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    errors = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def status(what: str) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says how far something is, if a person looks; yields what
    changes it."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield lambda _: None
        return
    with errors.status(plain(what)) as line:
        yield lambda text: line.update(plain(text))


def write(text: str) -> None:
    """Text from outside as it comes: lines stay lines, and nothing in it moves the cursor."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
    print(shown, end="", flush=True)  # noqa: T201


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name in ("id", "run"), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console().print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    """Names and values below each other; what is empty is left out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value not in (None, "", [], {}):
            table.add_row(name, _cell(value))
    console().print(table)


def state(word: object) -> Text:
    """A status or state in its colour."""
    return Text(str(word), style=_COLOURS.get(str(word), ""))


def compact(value: Any) -> str:
    """JSON on one line, as it stands in a table."""
    return msgspec.json.encode(value).decode()


def printable(text: object) -> str:
    """Text from outside, so that a terminal takes nothing in it for an order."""
    return "".join(one if one.isprintable() else "�" for one in str(text))


def plain(text: object) -> str:
    """Text from outside, so that also nothing in it is taken for markup."""
    return escape(printable(text))


def _cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, datetime):
        return Text(value.astimezone().isoformat(" ", "seconds"))
    shown = (
        compact(value) if isinstance(value, dict | list) else "" if value is None else str(value)
    )
    return Text(printable(shown))

"""Loggers of the engine: they cost nothing before something is logged, and break nothing then.

However the program around us has configured `structlog`: what is logged of an exception is its
frames, without the values of their variables (a default configuration would print them, secrets
too, and take minutes over it). Texts are of one line and bounded. A log that cannot be written is
lost, and not the work that it told of.

`structlog` brings the means to print to a terminal with it, and takes as long to import as most of
the engine. A program that only submits never needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from earnest.domain.foreign_errors import said_by
from earnest.engine.process.foreign_code import described, printable

MAX_TEXT = 2000
MAX_PARTS = 50
MAX_DEPTH = 5


class Logger:
    """Stands for the logger of that name; what it does is decided by how `structlog` is configured
    when something is logged. An `exc_info` is replaced by a text."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, /, **fields: Any) -> None:
        self._tell("debug", event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._tell("info", event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._tell("warning", event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._tell("error", event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """An error, with the exception that is being handled."""
        self._tell("error", event, {"exc_info": True, **fields})

    def _tell(self, method: str, event: str, fields: dict[str, Any]) -> None:
        try:
            import structlog

            logger = structlog.get_logger(self._name)
            getattr(logger, method)(_text(event), **_written(fields))
        except Exception:  # a full disk, a closed pipe, a processor of the program that fails
            return


def get_logger(name: str) -> Logger:
    return Logger(name)


def shown_message(message: object) -> str:
    """On one line and bounded."""
    return _text(message)


def shown_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a log line as JSON, as they are logged; never raises."""
    try:
        return _written({**fields})
    except Exception as error:  # what is logged is other people's things
        return {"fields": f"cannot be shown: {type(error).__name__}"}


def _written(fields: dict[str, Any]) -> dict[str, Any]:
    given = fields.pop("exc_info", None)
    error = sys.exception() if given is True else given
    # `structlog` has an argument of that name itself.
    shown = {"event_" if name == "event" else name: _plain(fields[name]) for name in fields}
    if isinstance(error, BaseException):
        shown["exception"] = described(error)
    return shown


def _plain(value: Any, depth: int = 0) -> Any:
    """The value as what any renderer can write: JSON's own types, and texts that can be printed."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        pairs = list(value.items())[:MAX_PARTS]
        return {_text(name): _plain(part, depth + 1) for name, part in pairs}
    if depth < MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [_plain(part, depth + 1) for part in list(value)[:MAX_PARTS]]
    return _text(value)


def _text(value: object) -> str:
    return printable(said_by(value), MAX_TEXT)

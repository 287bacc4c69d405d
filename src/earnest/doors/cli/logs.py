"""Logs: one line an event on standard error, as text or as JSON.

Ids are in them, payloads never. An exception is logged with its frames but without the values of
its variables, and what an error says is kept short; of an input that did not fit, only the places
are named.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import MutableMapping
from enum import StrEnum
from types import TracebackType
from typing import Any

MAX_MESSAGE = 300
MAX_FRAMES = 30

_TEXT_COLUMNS = 30


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def configure(shape: LogFormat, *, level: int = logging.INFO) -> None:
    """For the whole process; what other libraries log comes out in the same form."""
    import structlog

    if os.environ.get("EARNEST_DEBUG", "") not in ("", "0"):
        level = logging.DEBUG
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _format_exception,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _render(shape)],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for name in ("asyncio", "uvicorn", "httpx", "httpx2", "httpcore"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _render(shape: LogFormat) -> Any:
    import structlog

    if shape is LogFormat.JSON:
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(),
        exception_formatter=structlog.dev.plain_traceback,
        pad_event_to=_TEXT_COLUMNS,
    )


def _format_exception(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replaces `exc_info` by a text that repeats no value."""
    given = event.pop("exc_info", None)
    error = sys.exception() if given is True else given
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["exception"] = describe(error)
    return event


def describe(error: BaseException) -> str:
    """The error, its cause, and where they came from; no values of variables."""
    parts = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        parts.append(
            f"{type(current).__name__}: {_message(current)}{_frames(current.__traceback__)}"
        )
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return "\nafter ".join(parts)


def _message(error: BaseException) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        places = ["/".join(map(str, one["loc"])) for one in error.errors(include_input=False)]
        return f"does not fit at {', '.join(places[:10])}"
    text = " ".join(str(error).split())
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def _frames(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)[-MAX_FRAMES:]
    return "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)

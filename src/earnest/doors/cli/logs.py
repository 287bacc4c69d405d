"""Logs: one line an event on standard error, as text or as JSON.

Ids are in them, payloads never. An exception is logged with its frames but without the values of
its variables, and what an error says is kept short; of an input that did not fit, only the places
are named.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from enum import StrEnum
from typing import Any

MAX_MESSAGE = 2000

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
            foreign_pre_chain=[*shared, _on_one_line],
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
        from earnest.engine.process.foreign_code import described, printable, told_of

        if _is_warning_of_others(event):
            event["error"] = printable(told_of(error))
        else:
            event["exception"] = described(error)
    return event


def _is_warning_of_others(event: MutableMapping[str, Any]) -> bool:
    """Another library tells of what it does about it itself: the way through its code is of no use
    to who reads our log."""
    return event.get("_from_structlog") is False and event["_record"].levelno < logging.ERROR


def _on_one_line(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """What another library says, as our own lines are."""
    from earnest.engine.process.foreign_code import printable

    event["event"] = printable(str(event["event"]), MAX_MESSAGE)
    return event

"""Loggers that cost nothing before something is logged.

`structlog` brings the means to print to a terminal with it, and takes as long to import as most of
the engine. A program that only submits never needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class _Logger:
    """Stands for the logger of that name; what it does is decided by how `structlog` is configured
    when something is logged."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog

        return getattr(structlog.get_logger(self._name), method)


def get_logger(name: str) -> FilteringBoundLogger:
    return _Logger(name)

"""What is said once: a query's parameter that is no list, and a header that a route reads.

A framework takes the first or the last of two. Whoever wrote both meant one of them, and which one
nobody can know: both are refused, for every route in one place.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.requests import Request

from earnest.doors.api import headers

# Two of them are as good as none (W3C Trace Context), and the trace is not what was asked for.
_FORGIVEN = frozenset({"traceparent"})


class SaidOnce:
    """The rule of one route: what its handler reads, and its declared headers."""

    def __init__(self, handler: Callable[..., Any], parameters: list[dict[str, Any]]) -> None:
        self._queries = _queries(handler)
        self._headers = [
            one["name"]
            for one in parameters
            if one["in"] == "header" and one["name"] not in _FORGIVEN
        ]

    def require(self, request: Request) -> None:
        """Raises `InvalidRequest` or `RequestValidationError`, which say what comes twice."""
        for name in self._headers:
            headers.one(request.headers, name)
        if self._queries:
            self._require_queries(request)

    def _require_queries(self, request: Request) -> None:
        names = [name for name, _ in request.query_params.multi_items()]
        twice = [
            {
                "loc": ("query", name),
                "msg": "it is there more than once; send it once",
                "type": "twice",
            }
            for name in dict.fromkeys(names)
            if names.count(name) > 1 and not self._is_list(name)
        ]
        if twice:
            raise RequestValidationError(twice)

    def _is_list(self, name: str) -> bool:
        found = [one.model_fields[name] for one in self._queries if name in one.model_fields]
        return any(typing.get_origin(field.annotation) is list for field in found)


def _queries(handler: Callable[..., Any]) -> list[type[BaseModel]]:
    """The models that the handler reads from the query."""
    hints = typing.get_type_hints(handler, include_extras=True)
    return [
        hint.__origin__
        for hint in hints.values()
        if typing.get_origin(hint) is typing.Annotated
        and any(type(part).__name__ == "Query" for part in hint.__metadata__)
        and isinstance(hint.__origin__, type)
        and issubclass(hint.__origin__, BaseModel)
    ]

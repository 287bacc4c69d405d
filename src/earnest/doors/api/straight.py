"""The straight way to a handler that takes only who asks and parts of the path.

Such a request needs nothing of what the framework brings: no body, no form, no dependency to be
worked out. It passes the same gate and the same rule; what goes wrong is told by the gate. All
others, and paths that nobody knows, go on through the framework.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from earnest.doors.api.routes import JsonRoute

_Candidates = list[tuple[re.Pattern[str], JsonRoute]]


class StraightWay:
    """Goes before the framework. `gate` is called with the routes that are taken straight, `rest`
    with all others; a path belongs to the first route that it fits, as ever."""

    def __init__(self, routes: Iterable[object], rest: ASGIApp) -> None:
        self.gate: ASGIApp = rest
        self._rest = rest
        self._routes: dict[tuple[str, int], _Candidates] = defaultdict(list)
        for route in routes:
            if isinstance(route, JsonRoute):
                for method in route.methods or ():
                    place = (method, route.path.count("/"))
                    self._routes[place].append((route.path_regex, route))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        straight = scope["type"] == "http" and not scope.get("root_path") and self._find(scope)
        await (self.gate if straight else self._rest)(scope, receive, send)

    def _find(self, scope: Scope) -> bool:
        path: str = scope["path"]
        for pattern, route in self._routes.get((scope["method"], path.count("/")), ()):
            if (match := pattern.match(path)) is not None:
                scope["route"], scope["path_params"] = route, match.groupdict()
                return route.straight is not None
        return False


async def answer_straight(scope: Scope, receive: Receive, send: Send) -> None:
    """What stands behind the gate on the straight way."""
    answer = await scope["route"].straight(Request(scope, receive, send))
    await answer(scope, receive, send)

"""A server like Earnest's own with one route that does nothing: what Starlette costs by itself.

`python -m earnest.apps.bench.plain_server` serves on a free port and says where.
"""

from __future__ import annotations

import json

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from earnest.doors.api.serving import serve
from earnest.doors.cli.loop import run_in_loop
from earnest.doors.cli.stopping import stop_with_stdin


async def nothing(request: Request) -> JSONResponse:
    return JSONResponse({"ok": True})


app = Starlette(routes=[Route("/nothing", nothing)])


def main() -> None:
    stop_with_stdin()
    run_in_loop(serve(app, "127.0.0.1", 0, ready=_tell))


def _tell(url: str) -> None:
    print(json.dumps({"ready": True, "url": url}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

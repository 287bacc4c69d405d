"""The command `earnest`, also as `python -m earnest`: hands the command line what it stands on.

What is heavy is imported when a command needs it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from earnest import __version__
from earnest.apps.bench import command as bench
from earnest.apps.demo import command as demo
from earnest.doors.cli.parts import Opened, Server, Shown, Told
from earnest.doors.cli.program import run

if TYPE_CHECKING:
    from earnest.engine.inspection.readiness import Readiness
    from earnest.engine.process.engine import Engine


class Program:
    """The parts of the program, for the command line; see `doors.cli.parts`."""

    version = __version__

    @property
    def shown(self) -> Shown:
        from earnest.doors.api import showing

        return showing

    def open(self, told: Told) -> AbstractAsyncContextManager[Opened]:
        from earnest.assembly import Assembly, config_as_told

        return Assembly(config_as_told(told))

    def listen(self, host: str, port: int) -> socket.socket:
        from earnest.doors.api.serving import listen

        return listen(host, port)

    def serve(
        self, engine: Engine, listener: socket.socket, ready: Callable[[], Readiness]
    ) -> Server:
        from earnest.doors.api.application import build_api
        from earnest.doors.api.serving import Serving

        return Serving(build_api(engine, ready=ready), listener)

    def serve_metrics(
        self, engine: Engine, listener: socket.socket, ready: Callable[[], Readiness]
    ) -> Server:
        from earnest.doors.api.application import build_metrics
        from earnest.doors.api.serving import Serving

        return Serving(build_metrics(engine, ready=ready), listener)

    def migrations(self) -> str:
        from earnest.store.migrate import as_script, engine_migrations

        return as_script(engine_migrations())

    async def migrate(self, told: Told, *, check_only: bool) -> list[str]:
        from earnest.assembly import migrate_as_told

        return await migrate_as_told(told, check_only=check_only)


def main() -> None:
    sys.exit(run(Program(), more=[demo.add_to, bench.add_to]))


if __name__ == "__main__":
    main()

"""`earnest simulate`: providers that misbehave on request, in a process of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from earnest.doors.cli.options import Host, Json, StopWithStdin
from earnest.doors.cli.processes import Announcement
from earnest.doors.cli.stopping import stop_with_stdin


def add_to(program: typer.Typer) -> None:
    program.command("simulate")(simulate)


def simulate(
    host: Host = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", envvar="EARNEST_SIMULATOR_PORT", min=0, max=65535, help="0: a free one."
        ),
    ] = 0,
    as_json: Json = False,
    follow_stdin: StopWithStdin = False,
) -> None:
    """Serve the provider simulator until SIGTERM or SIGINT; it forgets everything at its end."""
    from earnest.testing.simulator import serve

    if follow_stdin:
        stop_with_stdin()
    announce = Announcement(as_json)
    serve(host, port, ready=lambda url: announce(url=url))

"""`earnest demo`: everything on one machine, each part in a process of its own, kept running."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from earnest.doors.cli.exits import ExitCode
from earnest.doors.cli.logs import LogFormat
from earnest.doors.cli.loop import run_in_loop
from earnest.doors.cli.options import DatabaseUrl, Host, Log, Port
from earnest.doors.cli.parts import Parts
from earnest.doors.cli.processes import PORT

DemoHome = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="EARNEST_DEMO_HOME",
        help="Its folder. `demo` in the default home if not given.",
        show_default=False,
    ),
]
SimulatorPort = Annotated[
    int,
    typer.Option(
        "--simulator-port",
        envvar="EARNEST_SIMULATOR_PORT",
        min=0,
        max=65535,
        help="0: a free one.",
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Begin anew; wipes a folder that the demo made.")
]
Restart = Annotated[bool, typer.Option("--restart/--no-restart", help="Start again what has died.")]
ShowTour = Annotated[
    bool | None,
    typer.Option(
        "--tour/--no-tour",
        help="Show a refund that survives a kill, and one that nobody can know of; then end. "
        "At a terminal it is shown unless --no-tour is given, and the demo stays.",
        show_default=False,
    ),
]
Stay = Annotated[
    bool | None,
    typer.Option(
        "--stay/--no-stay",
        help="Keep running until it is stopped. It does, unless --tour is given.",
        show_default=False,
    ),
]


def add_to(program: typer.Typer) -> None:
    program.command("demo")(demo)


def demo(  # noqa: PLR0913, PLR0917 - a command's parameters are its options
    context: typer.Context,
    home: DemoHome = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    simulator_port: SimulatorPort = 0,
    fresh: Fresh = False,
    restart: Restart = True,
    tour: ShowTour = None,
    stay: Stay = None,
    database_url: DatabaseUrl = None,
    log: Log = LogFormat.TEXT,
) -> None:
    """Serve with sample data, the simulator and a worker; DIR/demo.json says where and with which
    tokens, once all is ready. Server, worker and simulator may be killed; they come again."""
    from earnest.apps.demo.staying import Asked, run
    from earnest.store.home import default_home

    parts: Parts = context.obj
    asked = Asked(
        home=home or default_home() / "demo",
        database_url=database_url or None,
        host=host,
        port=port,
        simulator_port=simulator_port,
        fresh=fresh,
        restarts=restart,
        shows=sys.stdout.isatty() if tour is None else tour,
        stays=tour is not True if stay is None else stay,
        log=log,
    )
    raise typer.Exit(ExitCode.OK if run_in_loop(run(parts, asked)) else ExitCode.FAILED)

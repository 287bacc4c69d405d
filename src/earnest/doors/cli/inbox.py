"""`earnest inbox`: from whom signed messages are taken."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from earnest.doors.cli import screen
from earnest.doors.cli.opening import Desk, Opening
from earnest.doors.cli.options import Limit
from earnest.doors.cli.verbs import desk_command, opening_command
from earnest.doors.cli.webhooks import Overlap

if TYPE_CHECKING:
    from earnest.engine.messages.sourcing import Sourced

commands = typer.Typer(help="The inbox: from whom signed messages are taken.")
sources = typer.Typer(
    help="Sources: who may send to /v1/inbox/NAME, and which of the app's inboxes it goes to.",
    no_args_is_help=True,
)
commands.add_typer(sources, name="sources")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The source's name, in the address.")]
SecretGiven = Annotated[
    bool,
    typer.Option(
        "--secret-from-stdin", help="The sender has made the secret; read it from standard input."
    ),
]
_COLUMNS = ("name", "handler", "rotating until", "created by", "created")


@opening_command(sources)
def add(
    opening: Opening,
    name: Name,
    handler: Annotated[
        str | None, typer.Option("--handler", help="The app's inbox; NAME if not given.")
    ] = None,
    secret_from_stdin: SecretGiven = False,
) -> None:
    """Take messages from a sender. A secret that is made here is shown once."""
    secret = _read_secret(secret_from_stdin)

    async def act(desk: Desk) -> None:
        from earnest.engine.messages import sourcing

        made = await sourcing.add_source(desk.engine, desk.actor, name, handler or name, secret)
        _tell(desk, made)

    opening.at_desk(act)


@desk_command(sources, "list")
async def list_sources(desk: Desk, limit: Limit = 50) -> None:
    """List the scope's sources by name."""
    from earnest.engine.messages import sourcing

    found = await sourcing.sources(desk.engine, desk.actor, None, limit)
    desk.print_rows(
        _COLUMNS,
        found,
        lambda one: (one.name, one.handler, one.old_until, one.created_by, one.created_at),
        desk.shown.show_source,
    )


@opening_command(sources)
def rotate(
    opening: Opening,
    name: Name,
    overlap_hours: Overlap = 24,
    secret_from_stdin: SecretGiven = False,
) -> None:
    """Change a source's secret. Meanwhile the one before is taken, too."""
    secret = _read_secret(secret_from_stdin)

    async def act(desk: Desk) -> None:
        from earnest.engine.messages import sourcing

        overlap = timedelta(hours=overlap_hours)
        _tell(desk, await sourcing.rotate_source(desk.engine, desk.actor, name, overlap, secret))

    opening.at_desk(act)


@desk_command(sources, unless_yes="its messages are refused from then on")
async def remove(desk: Desk, name: Name) -> None:
    """Take no more messages from a source. What was handled stays known."""
    from earnest.engine.messages import sourcing

    await sourcing.remove_source(desk.engine, desk.actor, name)
    desk.print_line({"removed": name}, f"source {screen.plain(name)} is removed")


def _read_secret(given: bool) -> str | None:
    """Never an argument: other users of the machine see those."""
    return sys.stdin.readline().strip() if given else None


def _tell(desk: Desk, made: Sourced) -> None:
    shown = {**desk.shown.show_source(made.source)}
    if made.secret is not None:
        shown["secret"] = made.secret
    if desk.as_json:
        screen.print_json(shown)
    else:
        screen.print_facts({**shown, "address": f"/v1/inbox/{made.source.name}"})

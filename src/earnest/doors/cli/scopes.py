"""`earnest scopes`: the walls. The one that was made first rules what all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from earnest.doors.cli import screen
from earnest.doors.cli.opening import Lobby
from earnest.doors.cli.options import Limit
from earnest.doors.cli.verbs import lobby_command

commands = typer.Typer(help="Scopes: the walls between those who share a database.")

_COLUMNS = ("scope", "made by", "created")


@lobby_command(commands, "list")
async def list_scopes(lobby: Lobby, limit: Limit = 50) -> None:
    """List all scopes by name."""
    from earnest.engine.process import scopes

    found = await scopes.list_scopes(lobby.engine, lobby.actor_in(""), None, limit)
    lobby.print_rows(
        _COLUMNS,
        found,
        lambda one: (one.scope_id, one.created_by, one.created_at),
        lobby.shown.show_scope,
    )


@lobby_command(commands)
async def create(
    lobby: Lobby,
    scope: Annotated[str, typer.Argument(help="Its name.")],
    admin: Annotated[
        str | None,
        typer.Option("--admin", help="Its first admin, whose token is shown once."),
    ] = None,
) -> None:
    """Make a scope."""
    from earnest.engine.process import scopes

    made = await scopes.create_scope(lobby.engine, lobby.actor_in(scope), scope, admin=admin)
    shown: Mapping[str, Any] = lobby.shown.show_scope(made.scope)
    if lobby.as_json:
        screen.print_json({**shown, "token": made.token} if made.token else shown)
    else:
        typer.echo(made.token or f"scope {scope} is there")

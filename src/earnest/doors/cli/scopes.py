"""`earnest scopes`: the walls. The one that was made first rules what all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earnest.doors.cli import screen
from earnest.doors.cli.opening import at_engine, principal
from earnest.doors.cli.options import DatabaseUrl, Home, Json, Limit, told
from earnest.doors.cli.parts import Parts

if TYPE_CHECKING:
    from earnest.engine.process.engine import Engine

commands = typer.Typer(help="Scopes: the walls between those who share a database.")

_COLUMNS = ("scope", "made by", "created")


@commands.command("list")
def list_scopes(
    context: typer.Context,
    limit: Limit = 50,
    home: Home = None,
    database_url: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List all scopes by name."""
    parts: Parts = context.obj

    async def act(engine: Engine) -> None:
        from earnest.engine.process import scopes
        from earnest.engine.process.actors import local

        found = await scopes.list_scopes(engine, local("", principal()), None, limit)
        if as_json:
            screen.print_json({"items": [parts.shown.show_scope(one) for one in found]})
        else:
            rows = [(one.scope_id, one.created_by, one.created_at) for one in found]
            screen.print_table(_COLUMNS, rows)

    at_engine(context, told(home, database_url, None), act)


@commands.command()
def create(
    context: typer.Context,
    scope: Annotated[str, typer.Argument(help="Its name.")],
    admin: Annotated[
        str | None,
        typer.Option("--admin", help="Its first admin, whose token is shown once."),
    ] = None,
    home: Home = None,
    database_url: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Make a scope."""
    parts: Parts = context.obj

    async def act(engine: Engine) -> None:
        from earnest.engine.process import scopes
        from earnest.engine.process.actors import local

        made = await scopes.create_scope(engine, local(scope, principal()), scope, admin=admin)
        shown: Mapping[str, Any] = parts.shown.show_scope(made.scope)
        if as_json:
            screen.print_json({**shown, "token": made.token} if made.token else shown)
        else:
            typer.echo(made.token or f"scope {scope} is there")

    at_engine(context, told(home, database_url, None), act)

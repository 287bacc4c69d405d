"""`earnest roles`: as whom database roles submit with `SELECT earnest.submit(…)`."""

from __future__ import annotations

from typing import Annotated

import typer

from earnest.doors.cli import screen
from earnest.doors.cli.opening import Desk, at_desk
from earnest.doors.cli.options import DatabaseUrl, Home, Json, Scope, told

commands = typer.Typer(help="Roles of the database: as whom they submit from SQL.")

Role = Annotated[str, typer.Argument(help="A role that logs in to the database.")]


@commands.command("list")
def list_roles(
    context: typer.Context,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """List the roles that submit in the scope, each with its principal."""

    async def act(desk: Desk) -> None:
        from earnest.engine.process import database_roles

        found = await database_roles.mapped_roles(desk.engine, desk.scope)
        if as_json:
            items = [{"role": role, "principal": whom} for role, whom in found.items()]
            screen.print_json({"scope": desk.scope, "items": items})
        else:
            screen.print_table(("role", "principal"), found.items())

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command("map")
def map_role(
    context: typer.Context,
    role: Role,
    principal: Annotated[str, typer.Argument(help="The principal of the scope that it acts as.")],
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Let a role submit in the scope as a principal. Makes neither of the three."""

    async def act(desk: Desk) -> None:
        from earnest.engine.process import database_roles

        await database_roles.map_role(desk.engine, role, desk.scope, principal, by=desk.actor)
        if as_json:
            screen.print_json({"scope": desk.scope, "role": role, "principal": principal})
        else:
            screen.say(
                f"role {screen.plain(role)} submits in scope {screen.plain(desk.scope)} as "
                f"{screen.plain(principal)}"
            )

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command("unmap")
def unmap_role(
    context: typer.Context,
    role: Role,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """From its next call on the role submits nothing more in the scope. Harmless when repeated."""

    async def act(desk: Desk) -> None:
        from earnest.engine.process import database_roles

        await database_roles.unmap_role(desk.engine, role, desk.scope, by=desk.actor)
        if as_json:
            screen.print_json({"scope": desk.scope, "unmapped": role})
        else:
            screen.say(
                f"role {screen.plain(role)} submits nothing more in scope "
                f"{screen.plain(desk.scope)}"
            )

    at_desk(context, told(home, database_url, None), scope, act)

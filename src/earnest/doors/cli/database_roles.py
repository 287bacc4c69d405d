"""`earnest roles`: as whom database roles submit with `SELECT earnest.submit(…)`."""

from __future__ import annotations

from typing import Annotated

import typer

from earnest.doors.cli import screen
from earnest.doors.cli.opening import Desk
from earnest.doors.cli.screen import plain
from earnest.doors.cli.verbs import desk_command

commands = typer.Typer(help="Roles of the database: as whom they submit from SQL.")

Role = Annotated[str, typer.Argument(help="A role that logs in to the database.")]


@desk_command(commands, "list")
async def list_roles(desk: Desk) -> None:
    """List the roles that submit in the scope, each with its principal."""
    from earnest.engine.process import database_roles

    found = await database_roles.mapped_roles(desk.engine, desk.scope)
    if desk.as_json:
        items = [{"role": role, "principal": whom} for role, whom in found.items()]
        screen.print_json({"scope": desk.scope, "items": items})
    else:
        screen.print_table(("role", "principal"), found.items())


@desk_command(commands, "map")
async def map_role(
    desk: Desk,
    role: Role,
    principal: Annotated[str, typer.Argument(help="The principal of the scope that it acts as.")],
) -> None:
    """Let a role submit in the scope as a principal. Makes neither of the three."""
    from earnest.engine.process import database_roles

    await database_roles.map_role(desk.engine, role, desk.scope, principal, by=desk.actor)
    desk.print_line(
        {"scope": desk.scope, "role": role, "principal": principal},
        f"role {plain(role)} submits in scope {plain(desk.scope)} as {plain(principal)}",
    )


@desk_command(commands, "unmap")
async def unmap_role(desk: Desk, role: Role) -> None:
    """From its next call on the role submits nothing more in the scope. Harmless when repeated."""
    from earnest.engine.process import database_roles

    await database_roles.unmap_role(desk.engine, role, desk.scope, by=desk.actor)
    desk.print_line(
        {"scope": desk.scope, "unmapped": role},
        f"role {plain(role)} submits nothing more in scope {plain(desk.scope)}",
    )

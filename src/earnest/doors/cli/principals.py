"""`earnest principals`: who acts in a scope, and with which roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from earnest.doors.cli.opening import Desk, Opening
from earnest.doors.cli.options import Limit
from earnest.doors.cli.verbs import desk_command, opening_command

if TYPE_CHECKING:
    from earnest.domain.access import Principal

commands = typer.Typer(help="Principals: who acts in a scope, and with which roles.")

_COLUMNS = ("principal", "roles", "version", "created", "disabled")


@desk_command(commands, "list")
async def list_principals(desk: Desk, limit: Limit = 50) -> None:
    """List the scope's principals by name."""
    from earnest.engine.process import principals

    found = await principals.list_principals(desk.engine, desk.actor, None, limit)
    desk.print_rows(_COLUMNS, found, _row, desk.shown.show_principal)


@opening_command(commands, "set")
def set_principal(
    opening: Opening,
    principal: Annotated[str, typer.Argument(help="Its name; made if it is not there.")],
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="member, approver, operator or admin; may be repeated."),
    ] = None,
    disable: Annotated[
        bool, typer.Option("--disable", help="Take all roles away; its tokens open nothing.")
    ] = False,
    if_version: Annotated[
        int | None,
        typer.Option("--if-version", help="The version that was looked at; any if not given."),
    ] = None,
) -> None:
    """Give a principal exactly these roles, or disable it. The last admin of a scope stays one."""
    if not role and not disable:
        raise typer.BadParameter("say which roles it shall have (--role), or --disable")

    async def act(desk: Desk) -> None:
        from earnest.domain.errors import NotFound
        from earnest.engine.process import principals

        version = if_version
        if version is None:
            try:
                found = await principals.find_principal(desk.engine, desk.actor, principal)
                version = found.version
            except NotFound:
                pass
        wanted = principals.Standing(frozenset(role or ()), disable)
        made = await principals.set_principal(desk.engine, desk.actor, principal, wanted, version)
        desk.print_row(_COLUMNS, made, _row, desk.shown.show_principal)

    opening.at_desk(act)


def _row(one: Principal) -> tuple[object, ...]:
    return (
        one.principal_id,
        " ".join(one.roles),
        one.version,
        one.created_at,
        one.disabled_at,
    )

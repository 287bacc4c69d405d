"""`earnest audit`: who decided, resolved, cancelled, retried, or changed who may come in."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from earnest.doors.cli import screen
from earnest.doors.cli.opening import Desk, at_desk
from earnest.doors.cli.options import DatabaseUrl, Home, Json, Limit, Scope, told

if TYPE_CHECKING:
    from earnest.domain.audit import AuditEntry

commands = typer.Typer(help="The audit: who did what.")

_COLUMNS = ("at", "who", "action", "subject", "detail", "token", "request")


@commands.command("list")
def list_audit(  # noqa: PLR0913, PLR0917 - a command's parameters are its options
    context: typer.Context,
    action: Annotated[
        str | None, typer.Option("--action", help="Only these, such as run.cancelled.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Only what was done to this: run_01…, and so on")
    ] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", help="Only what this one did.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="From this time on: 2026-01-31T12:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Before this time.")] = None,
    limit: Limit = 50,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """List what people decided and changed in the scope, newest first."""
    from_at, to_at = _read_time(since, "--since"), _read_time(until, "--until")

    async def act(desk: Desk) -> None:
        from earnest.engine.process import auditing
        from earnest.store.audit import AuditFilter

        only = AuditFilter(action, subject, principal, from_at, to_at)
        found = await auditing.entries(desk.engine, desk.actor, only, None, limit)
        if as_json:
            screen.print_json({"items": [desk.shown.show_audit_entry(one) for one in found]})
        else:
            screen.print_table(_COLUMNS, [_row(one) for one in found])

    at_desk(context, told(home, database_url, None), scope, act)


def _read_time(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        read = None
    if read is None or read.tzinfo is None:
        raise typer.BadParameter(f"{option} is a time with its zone, such as 2026-01-31T12:00:00Z")
    return read


def _row(entry: AuditEntry) -> tuple[object, ...]:
    return (
        entry.created_at,
        entry.principal_id,
        entry.action,
        entry.subject,
        entry.detail,
        entry.token_id,
        entry.request_id,
    )

"""`earnest audit`: who decided, resolved, cancelled, retried, or changed who may come in."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from earnest.doors.cli.opening import Desk, Opening
from earnest.doors.cli.options import Limit
from earnest.doors.cli.verbs import opening_command

if TYPE_CHECKING:
    from earnest.domain.audit import AuditEntry

commands = typer.Typer(help="The audit: who did what.")

_COLUMNS = ("at", "who", "action", "subject", "detail", "token", "request")


@opening_command(commands, "list")
def list_audit(
    opening: Opening,
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
) -> None:
    """List what people decided and changed in the scope, newest first."""
    from_at, to_at = _read_time(since, "--since"), _read_time(until, "--until")

    async def act(desk: Desk) -> None:
        from earnest.engine.process import auditing
        from earnest.store.audit import AuditFilter

        only = AuditFilter(action, subject, principal, from_at, to_at)
        found = await auditing.entries(desk.engine, desk.actor, only, None, limit)
        desk.print_rows(_COLUMNS, found, _row, desk.shown.show_audit_entry)

    opening.at_desk(act)


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

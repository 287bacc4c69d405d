"""`earnest runs logs`: what a run's handler wrote for the people who run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from earnest.doors.cli import runs, screen
from earnest.doors.cli.opening import Desk
from earnest.doors.cli.options import Limit
from earnest.doors.cli.runs import RunId
from earnest.doors.cli.verbs import desk_command

if TYPE_CHECKING:
    from earnest.domain.log_line import LogLine


def add_to(commands: typer.Typer) -> None:
    """Harmless when repeated: a program may be built several times."""
    if all(one.name != "logs" for one in commands.registered_commands):
        desk_command(commands, "logs")(logs)


async def logs(
    desk: Desk,
    run: RunId,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Only of this attempt.")
    ] = None,
    limit: Limit = 1000,
) -> None:
    """Print what the handler of a run wrote, oldest first. Lines are kept for some days."""
    from earnest.store import logs as stored
    from earnest.store.visible import Sight

    database = desk.engine.database
    found = await runs.find(desk, run)
    sight = Sight(desk.scope, found.run_id, None)
    lines = await stored.visible(database, sight, (0, 0), attempt, limit)
    left_out = await stored.left_out(database, desk.scope, found.run_id, attempt)
    if desk.as_json:
        screen.print_json({"items": [_shown(line) for line in lines], "left_out": left_out})
        return
    for line in lines:
        screen.write(_as_text(line) + "\n")
    if left_out:
        typer.echo(f"{left_out} more lines were not kept", err=True)


def _shown(line: LogLine) -> dict[str, Any]:
    return {
        "attempt": line.attempt,
        "number": line.number,
        "message": line.message,
        "fields": line.fields,
        "created_at": line.created_at,
    }


def _as_text(line: LogLine) -> str:
    at = line.created_at.astimezone().isoformat(" ", "milliseconds")
    fields = "".join(f" {name}={screen.compact(value)}" for name, value in line.fields.items())
    return f"{at} [{line.attempt}] {line.message}{fields}"

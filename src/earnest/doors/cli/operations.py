"""`earnest operations`: what was sent to the outside, and the desk where doubts are settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from earnest.domain import ids
from earnest.domain.errors import NotFound
from earnest.domain.operation import OperationState
from earnest.doors.cli import screen
from earnest.doors.cli.given import read_json
from earnest.doors.cli.opening import Desk, Opening
from earnest.doors.cli.options import Limit
from earnest.doors.cli.verbs import desk_command, opening_command

if TYPE_CHECKING:
    from earnest.domain.operation import Operation

commands = typer.Typer(help="Operations: what was sent to the outside, and what is in doubt.")

OperationId = Annotated[
    str, typer.Argument(metavar="OPERATION", help="The operation's id, such as op_01….")
]
_COLUMNS = ("id", "run", "kind", "state", "recovery", "since", "version", "note")


@desk_command(commands, "list")
async def list_operations(
    desk: Desk,
    state: Annotated[
        OperationState | None, typer.Option("--state", help="Only operations in this state.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List operations, oldest first; `--state unknown` is the desk. Where operations of other
    scopes are in doubt, standard error says so."""
    from earnest.store import operations

    wanted = state and state.value
    found = await operations.listed(desk.engine.database, desk.scope, wanted, None, limit)
    desk.print_rows(_COLUMNS, found, _row, desk.shown.show_operation_summary)
    await _tell_of_doubts_elsewhere(desk)


@desk_command(commands)
async def show(desk: Desk, operation: OperationId) -> None:
    """Show an operation with its whole history."""
    await _show(desk, await _find(desk, operation))


@desk_command(commands, loads_apps=True)
async def lookup(desk: Desk, operation: OperationId) -> None:
    """Ask the provider now what became of an operation in doubt, and act on the answer."""
    from earnest.engine.operations import reconciling

    asked_for = ids.read("op", operation)
    found = await reconciling.look_up(desk.engine, desk.scope, asked_for, by=desk.actor)
    desk.print_row(_COLUMNS, found, _row, desk.shown.show_operation_summary)


@opening_command(commands, loads_apps=True)
def resolve(
    opening: Opening,
    operation: OperationId,
    outcome: Annotated[
        str, typer.Option("--outcome", help="`submitted`: it happened. `released`: it did not.")
    ],
    evidence: Annotated[str, typer.Option("--evidence", help="How you know.")],
    receipt: Annotated[
        str | None, typer.Option("--receipt", help="With `submitted`: JSON, `-` or @FILE.")
    ] = None,
    note: Annotated[str, typer.Option("--note")] = "",
    if_version: Annotated[
        int | None,
        typer.Option(
            "--if-version", help="The version that was looked at; the present one if not."
        ),
    ] = None,
) -> None:
    """Settle an operation in doubt by evidence. Its run goes on."""
    value = None if receipt is None else read_json(receipt, "--receipt")
    _require_fit(outcome, value)

    async def act(desk: Desk) -> None:
        from earnest.engine.operations import reconciling

        found = await _find(desk, operation)
        settled = await reconciling.resolve(
            desk.engine,
            desk.scope,
            found.operation_id,
            reconciling.Verdict(outcome, evidence, note, value),
            by=desk.principal,
            version=if_version or found.version,
        )
        desk.print_row(_COLUMNS, settled, _row, desk.shown.show_operation_summary)

    opening.at_desk(act)


# ---- what the commands do ----------------------------------------------------------------------


async def _tell_of_doubts_elsewhere(desk: Desk) -> None:
    from earnest.store import operations

    found = await operations.doubts_by_scope(desk.engine.database)
    others = [f"{scope} ({doubts})" for scope, doubts in found.items() if scope != desk.scope]
    if others:
        typer.echo(
            f"this is scope {desk.scope}; operations in doubt are also in {', '.join(others)}: "
            "look with --scope",
            err=True,
        )


def _require_fit(outcome: str, receipt: object) -> None:
    if outcome == OperationState.SUBMITTED and receipt is None:
        raise typer.BadParameter(
            "`--outcome submitted` needs the provider's receipt: --receipt '{…}', or @FILE"
        )
    if outcome == OperationState.RELEASED and receipt is not None:
        raise typer.BadParameter(
            "`--outcome released` says that it did not happen: leave --receipt out"
        )


async def _find(desk: Desk, text: str) -> Operation:
    from earnest.store import operations

    found = await operations.find(desk.engine.database, desk.scope, ids.read("op", text))
    if found is None:
        raise NotFound(f"no such operation in scope {desk.scope}: {text[:80]!r}")
    return found


async def _show(desk: Desk, found: Operation) -> None:
    from earnest.store import operations

    database = desk.engine.database
    asked = await operations.lookups(database, desk.scope, found.operation_id)
    moves = await operations.moves(database, desk.scope, found.operation_id)
    findings = await operations.findings(database, desk.scope, found.operation_id)
    shown = {
        **desk.shown.show_operation(found, asked),
        "history": [desk.shown.show_move(move) for move in moves],
        "findings": findings,
    }
    if desk.as_json:
        screen.print_json(shown)
        return
    left_out = ("history", "findings", "lookups", "state")
    facts: dict[str, Any] = {name: shown[name] for name in shown if name not in left_out}
    screen.print_facts({"id": facts.pop("id"), "state": screen.state(found.state), **facts})
    _print_parts("history", ("version", "move", "state", "attempt", "by", "at"), shown["history"])
    _print_parts("look-ups", ("number", "answer", "detail", "at"), shown["lookups"])
    _print_parts("findings", ("kind", "detail", "at"), findings)


def _print_parts(title: str, columns: tuple[str, ...], parts: list[Any]) -> None:
    if parts:
        screen.say(f"\n[bold]{title}[/]")
        screen.print_table(columns, [[part[name] for name in columns] for part in parts])


def _row(operation: Operation) -> tuple[object, ...]:
    run = operation.run_id
    return (
        ids.show("op", operation.operation_id),
        None if run is None else ids.show("run", run),
        operation.kind,
        screen.state(operation.state),
        operation.recovery.value,
        operation.unknown_since or operation.created_at,
        operation.version,
        operation.release_reason and operation.release_reason.value,
    )

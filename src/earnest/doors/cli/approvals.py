"""`earnest approvals`: what waits for a person's decision, and the decision.

A decision names the digest and the version of what was shown, so it is about that or it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from earnest.domain import ids
from earnest.domain.approval import ApprovalStatus, Decision
from earnest.domain.errors import InvalidRequest
from earnest.doors.cli import screen
from earnest.doors.cli.opening import Desk
from earnest.doors.cli.options import Limit
from earnest.doors.cli.verbs import desk_command

if TYPE_CHECKING:
    from earnest.domain.approval import Approval

commands = typer.Typer(help="Approvals: what waits for a person's decision.")

ApprovalId = Annotated[
    str, typer.Argument(metavar="APPROVAL", help="The approval's id, such as apr_01….")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Decide without being asked again.")]
Note = Annotated[str, typer.Option("--note", help="Why; kept with the decision.")]
Digest = Annotated[
    str | None,
    typer.Option("--digest", help="Of what you looked at; of what is shown now if not given."),
]
_COLUMNS = ("id", "run", "name", "status", "role", "requested", "expires", "decided by")


@desk_command(commands, "list")
async def list_approvals(
    desk: Desk,
    status: Annotated[
        ApprovalStatus | None, typer.Option("--status", help="Only approvals in this status.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List approvals, oldest first; `--status pending` is what waits for a decision."""
    from earnest.engine.approvals import reading

    found = await reading.list_approvals(desk.engine, desk.actor, status, None, limit)
    desk.print_rows(_COLUMNS, found, _row, desk.shown.show_approval)


@desk_command(commands)
async def show(desk: Desk, approval: ApprovalId) -> None:
    """Show an approval: exactly what is asked for, of whom, and what was decided."""
    found = await _find(desk, approval)
    if desk.as_json:
        screen.print_json(desk.shown.show_approval(found))
    else:
        _tell(desk, found)


@desk_command(commands)
async def approve(
    desk: Desk, approval: ApprovalId, note: Note = "", digest: Digest = None, yes: Yes = False
) -> None:
    """Approve exactly what is shown; the run goes on."""
    await _decide(desk, approval, Decision.APPROVE, note, digest, yes)


@desk_command(commands)
async def reject(
    desk: Desk, approval: ApprovalId, note: Note = "", digest: Digest = None, yes: Yes = False
) -> None:
    """Reject what is shown; nothing of it is sent."""
    await _decide(desk, approval, Decision.REJECT, note, digest, yes)


# ---- what the commands do ----------------------------------------------------------------------


async def _decide(
    desk: Desk, text: str, decision: Decision, note: str, digest: str | None, yes: bool
) -> None:
    from earnest.engine.approvals import deciding

    if desk.as_json and not yes:
        raise typer.BadParameter("with --json nobody can be asked again: add --yes")
    found = await _find(desk, text)
    if not desk.as_json:
        _tell(desk, found)
    if not yes:
        _require_yes(decision)
    verdict = deciding.Verdict(decision, digest or found.digest.hex(), note)
    decided = await deciding.decide(
        desk.engine, desk.actor, found.approval_id, verdict, version=found.version
    )
    desk.print_row(_COLUMNS, decided.approval, _row, desk.shown.show_approval)


def _require_yes(decision: Decision) -> None:
    try:
        said = typer.confirm(f"{decision.value} exactly this?", err=True)
    except typer.Abort as error:
        raise InvalidRequest("nobody answered, so nothing was decided; add --yes") from error
    if not said:
        raise InvalidRequest("nothing was decided")


async def _find(desk: Desk, text: str) -> Approval:
    from earnest.engine.approvals import reading

    return await reading.find_approval(desk.engine, desk.actor, ids.read("apr", text))


def _tell(desk: Desk, found: Approval) -> None:
    shown: dict[str, Any] = {**desk.shown.show_approval(found)}
    proposal = shown.pop("proposal")
    shown["status"] = screen.state(found.status)
    screen.print_facts(shown)
    screen.say("\n[bold]proposal[/]")
    screen.print_json(proposal)


def _row(found: Approval) -> tuple[object, ...]:
    return (
        ids.show("apr", found.approval_id),
        ids.show("run", found.run_id),
        found.name,
        screen.state(found.status),
        found.role,
        found.requested_at,
        found.expires_at,
        found.decided_by,
    )

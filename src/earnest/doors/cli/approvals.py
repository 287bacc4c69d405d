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
from earnest.doors.cli.opening import Desk, at_desk
from earnest.doors.cli.options import DatabaseUrl, Home, Json, Limit, Scope, told

if TYPE_CHECKING:
    from earnest.domain.approval import Approval
    from earnest.engine.process.actors import Actor

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


@commands.command("list")
def list_approvals(
    context: typer.Context,
    status: Annotated[
        ApprovalStatus | None, typer.Option("--status", help="Only approvals in this status.")
    ] = None,
    limit: Limit = 50,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """List approvals, oldest first; `--status pending` is what waits for a decision."""

    async def act(desk: Desk) -> None:
        from earnest.engine.approvals import reading

        found = await reading.list_approvals(desk.engine, _actor(desk), status, None, limit)
        if as_json:
            screen.print_json({"items": [desk.shown.show_approval(one) for one in found]})
        else:
            screen.print_table(_COLUMNS, [_row(one) for one in found])

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command()
def show(
    context: typer.Context,
    approval: ApprovalId,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Show an approval: exactly what is asked for, of whom, and what was decided."""

    async def act(desk: Desk) -> None:
        found = await _find(desk, approval)
        if as_json:
            screen.print_json(desk.shown.show_approval(found))
        else:
            _tell(desk, found)

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command()
def approve(
    context: typer.Context,
    approval: ApprovalId,
    note: Note = "",
    digest: Digest = None,
    yes: Yes = False,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Approve exactly what is shown; the run goes on."""
    at_desk(
        context,
        told(home, database_url, None),
        scope,
        lambda desk: _decide(desk, approval, Decision.APPROVE, note, digest, yes, as_json),
    )


@commands.command()
def reject(
    context: typer.Context,
    approval: ApprovalId,
    note: Note = "",
    digest: Digest = None,
    yes: Yes = False,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Reject what is shown; nothing of it is sent."""
    at_desk(
        context,
        told(home, database_url, None),
        scope,
        lambda desk: _decide(desk, approval, Decision.REJECT, note, digest, yes, as_json),
    )


# ---- what the commands do ----------------------------------------------------------------------


async def _decide(
    desk: Desk,
    text: str,
    decision: Decision,
    note: str,
    digest: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    from earnest.engine.approvals import deciding

    if as_json and not yes:
        raise typer.BadParameter("with --json nobody can be asked again: add --yes")
    found = await _find(desk, text)
    if not as_json:
        _tell(desk, found)
    if not yes:
        _require_yes(decision)
    verdict = deciding.Verdict(decision, digest or found.digest.hex(), note)
    decided = await deciding.decide(
        desk.engine, _actor(desk), found.approval_id, verdict, version=found.version
    )
    if as_json:
        screen.print_json(desk.shown.show_approval(decided.approval))
    else:
        screen.print_table(_COLUMNS, [_row(decided.approval)])


def _require_yes(decision: Decision) -> None:
    try:
        said = typer.confirm(f"{decision.value} exactly this?", err=True)
    except typer.Abort as error:
        raise InvalidRequest("nobody answered, so nothing was decided; add --yes") from error
    if not said:
        raise InvalidRequest("nothing was decided")


def _actor(desk: Desk) -> Actor:
    """Whoever can open the database has every role in it."""
    from earnest.engine.process import actors

    return actors.local(desk.scope, desk.principal)


async def _find(desk: Desk, text: str) -> Approval:
    from earnest.engine.approvals import reading

    return await reading.find_approval(desk.engine, _actor(desk), ids.read("apr", text))


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

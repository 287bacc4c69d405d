"""`earnest runs`: ask for work, look at it, stop it, try it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from earnest.domain import ids
from earnest.domain.errors import InvalidRequest, NotFound, UnknownKind
from earnest.domain.run import ACTIVE, RunStatus
from earnest.doors.cli import explaining, screen, watching
from earnest.doors.cli.exits import ExitCode
from earnest.doors.cli.given import read_json, read_pairs
from earnest.doors.cli.opening import Desk, Opening
from earnest.doors.cli.options import Limit, Yes
from earnest.doors.cli.verbs import desk_command, opening_command

if TYPE_CHECKING:
    from earnest.domain.operation import Operation
    from earnest.domain.run import Attempt, Run
    from earnest.store.runs import RunFilter

_LISTED = 100

commands = typer.Typer(help="Runs: ask for work, look at it, stop it, try it again.")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, such as run_01….")]
Status = Annotated[RunStatus | None, typer.Option("--status", help="Only runs in this status.")]
Kind = Annotated[str | None, typer.Option("--kind", help="Only runs of this kind.")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="May be repeated.")
]
Key = Annotated[str | None, typer.Option("--key", help="The same key and input give the same run.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Then watch it to its end.")]
Text = Annotated[bool, typer.Option("--text", help="What the run writes instead of its events.")]
TimeOut = Annotated[
    float | None,
    typer.Option("--timeout", min=0, metavar="SECONDS", help="Give up watching after that."),
]

_CANCELLED_AT_ONCE = 1000
_COLUMNS = ("id", "kind", "status", "attempt", "created", "finished", "note")


@opening_command(commands, "list")
def list_runs(
    opening: Opening,
    status: Status = None,
    kind: Kind = None,
    label: Labels = None,
    limit: Limit = 50,
) -> None:
    """List runs, newest first."""
    labels = read_pairs(label or ())

    async def act(desk: Desk) -> None:
        found = await _matching(desk, _only(status, kind, labels), limit)
        desk.print_rows(_COLUMNS, found, _row, desk.shown.show_run_summary)

    opening.at_desk(act)


@desk_command(commands)
async def show(desk: Desk, run: RunId) -> None:
    """Show a run with its attempts and operations."""
    from earnest.store import operations, runs

    found = await find(desk, run)
    database = desk.engine.database
    attempts = await runs.attempts(database, desk.scope, found.run_id)
    asked_for = await operations.of_run(database, desk.scope, found.run_id)
    _tell(desk, found, attempts, asked_for)


@desk_command(commands)
async def explain(desk: Desk, run: RunId) -> None:
    """Say why a run is not moving, and what would move it."""
    await explaining.explain(desk, run)


@desk_command(commands)
async def watch(desk: Desk, run: RunId, text: Text = False, timeout: TimeOut = None) -> ExitCode:
    """Follow a run's events, or its text, until it ends. Exit code 0 if it succeeded, else 1."""
    found = await find(desk, run)
    return await watching.watch(desk, found.run_id, seconds=timeout, text=text)


@opening_command(commands, loads_apps=True)
def submit(
    opening: Opening,
    kind: Annotated[str, typer.Argument(help="A run kind of a loaded app.")],
    input: Annotated[str, typer.Argument(help="JSON, `-` for standard input, or @FILE.")] = "null",
    key: Key = None,
    label: Labels = None,
    priority: Annotated[int, typer.Option("--priority")] = 0,
    follow: Watch = False,
) -> ExitCode:
    """Ask for a run. It is stored when this returns; a worker takes it up."""
    from earnest.engine.process import as_sent
    from earnest.engine.runs.submitting import Request

    value = read_json(input, "INPUT")
    request = Request(
        kind,
        value,
        key,
        priority=priority,
        labels=read_pairs(label or ()),
        fingerprint_of=as_sent.request(kind, value) if key is not None else None,
    )

    async def act(desk: Desk) -> ExitCode:
        from earnest.engine.runs import submitting

        await _require_known(desk, kind)
        submitted = await submitting.submit(desk.engine, desk.scope, desk.principal, request)
        again = " (it was there already: same key, same request)" if submitted.replayed else ""
        return await _tell_new(desk, submitted.run, again, follow)

    return opening.at_desk(act)


@desk_command(commands, loads_apps=True)
async def retry(
    desk: Desk,
    run: RunId,
    key: Key = None,
    follow: Watch = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Also if it sends again what was submitted.")
    ] = False,
) -> ExitCode:
    """Try a run that ended badly once more, as a new revision; the old one stays as it is.

    A new revision sends its own operations. Where the old one has submitted some, it asks for
    --yes.
    """
    from earnest.engine.runs import retrying

    old = ids.read("run", run)
    new = await retrying.retry(
        desk.engine, desk.scope, old, by=desk.principal, key=key, repeat_submitted=yes
    )
    return await _tell_new(desk, new.run, f" (revision {new.run.revision})", follow)


@opening_command(commands)
def cancel(
    opening: Opening,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run, or…")] = None,
    status: Annotated[
        RunStatus | None, typer.Option("--status", help="…all in this status (with --yes).")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="…all of this kind (with --yes).")
    ] = None,
    label: Labels = None,
    yes: Yes = False,
) -> None:
    """Cancel one run, or all that match a filter. A call that was sent is let finish."""
    labels = read_pairs(label or ())
    if (run is None) == (not (status or kind or labels)):
        raise typer.BadParameter("name one run, or a filter: --status, --kind, --label")

    async def act(desk: Desk) -> None:
        chosen = [ids.read("run", run)] if run else await _active(desk, status, kind, labels)
        if run is None and not yes:
            raise InvalidRequest(f"{len(chosen)} runs match; add --yes to cancel them")
        await _cancel(desk, chosen)

    opening.at_desk(act)


@opening_command(commands)
def signal(
    opening: Opening,
    run: RunId,
    name: Annotated[str, typer.Argument(help="What the run waits for.")],
    payload: Annotated[str, typer.Argument(help="JSON, `-` or @FILE.")] = "null",
    key: Annotated[str | None, typer.Option("--key", help="Sent again, it counts once.")] = None,
) -> None:
    """Send a named signal to a run; it wakes a run that waits for it."""
    value = read_json(payload, "PAYLOAD")

    async def act(desk: Desk) -> None:
        from earnest.engine.runs import signalling

        run_id = ids.read("run", run)
        number = await signalling.signal(
            desk.engine, desk.scope, run_id, name, value, by=desk.principal, key=key
        )
        desk.print_line(
            {"run_id": run, "name": name, "number": number},
            f"signal {screen.plain(name)} #{number} stored",
        )

    opening.at_desk(act)


# ---- what the commands do ----------------------------------------------------------------------


async def find(desk: Desk, text: str) -> Run:
    """The run of that id in the scope. Raises `NotFound`."""
    from earnest.store import runs

    found = await runs.find(desk.engine.database, desk.scope, ids.read("run", text))
    if found is None:
        raise NotFound(f"no such run in scope {desk.scope}: {text[:80]!r}")
    return found


def _only(status: RunStatus | None, kind: str | None, labels: dict[str, str]) -> RunFilter:
    from earnest.store.runs import RunFilter

    return RunFilter(status=status and status.value, kind=kind, labels=labels or None)


async def _matching(desk: Desk, only: RunFilter, limit: int) -> list[Run]:
    from earnest.store import runs

    return await runs.listed(desk.engine.database, desk.scope, only, None, limit)


async def _active(
    desk: Desk, status: RunStatus | None, kind: str | None, labels: dict[str, str]
) -> list[UUID]:
    wanted = sorted(ACTIVE) if status is None else [status]
    return [
        run.run_id
        for one in wanted
        for run in await _matching(desk, _only(one, kind, labels), _CANCELLED_AT_ONCE)
        if not run.final
    ]


async def _cancel(desk: Desk, chosen: Sequence[UUID]) -> None:
    from earnest.engine.runs import cancelling

    done = [
        await cancelling.cancel(desk.engine, desk.scope, run_id, desk.principal)
        for run_id in chosen
    ]
    if desk.as_json:
        items = [
            {"outcome": one.outcome, "run": desk.shown.show_run_summary(one.run)} for one in done
        ]
        screen.print_json({"items": items})
        return
    for one in done:
        screen.say(f"{ids.show('run', one.run.run_id)}  {one.outcome.value}")
    if not done:
        screen.say("nothing to cancel")


async def _require_known(desk: Desk, kind: str) -> None:
    """Says which app to name where none was, or another one."""
    from earnest.store import kinds

    if kind in desk.engine.kinds:
        return
    announced = await kinds.announced(desk.engine.database)
    if kind in announced:
        raise UnknownKind(
            f"the run kind {kind!r} is of an app that was not named; name it with --app "
            "MODULE:ATTRIBUTE or EARNEST_APP"
        )
    if not desk.engine.kinds:
        raise UnknownKind(
            f"no run kind {kind[:80]!r} is known, and no app was named with --app or EARNEST_APP; "
            f"announced in this database are: {', '.join(announced[:_LISTED]) or 'none'}"
        )


async def _tell_new(desk: Desk, run: Run, note: str, follow: bool) -> ExitCode:
    if desk.as_json and not follow:
        screen.print_json(desk.shown.show_run(run))
    elif not desk.as_json:
        screen.say(f"{ids.show('run', run.run_id)}  {run.status.value}{note}")
    if follow:
        return await watching.watch(desk, run.run_id)
    return ExitCode.OK


def _tell(desk: Desk, run: Run, attempts: Sequence[Attempt], found: Sequence[Operation]) -> None:
    if desk.as_json:
        screen.print_json(
            {
                **desk.shown.show_run(run),
                "attempts": [desk.shown.show_attempt(one) for one in attempts],
                "operations": [desk.shown.show_operation_summary(one) for one in found],
            }
        )
        return
    screen.print_facts(_facts(desk.shown.show_run(run)))
    if attempts:
        screen.say("")
        screen.print_table(
            ("attempt", "outcome", "started", "ended", "error"),
            [
                (one.number, one.outcome or "running", one.started_at, one.ended_at,
                 (one.error or {}).get("detail"))
                for one in attempts
            ],
        )  # fmt: skip
    if found:
        screen.say("")
        screen.print_table(
            ("id", "operation", "state", "recovery", "sent", "version"),
            [
                (ids.show("op", one.operation_id), one.name, screen.state(one.state),
                 one.recovery.value, one.send_count, one.version)
                for one in found
            ],
        )  # fmt: skip


def _facts(shown: Any) -> dict[str, object]:
    left_out = {"run_id", "links", "status"}
    facts = {name: value for name, value in shown.items() if name not in left_out}
    return {"id": facts.pop("id"), "status": screen.state(shown["status"]), **facts}


def _row(run: Run) -> tuple[object, ...]:
    note = (run.error or {}).get("detail") or ("cancel requested" if run.cancel_requested else "")
    return (
        ids.show("run", run.run_id),
        run.kind,
        screen.state(run.status),
        run.attempt,
        run.created_at,
        run.finished_at,
        note,
    )

"""`earnest sweeps`: what a provider did beside what is recorded, and the differences."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from earnest.domain import ids
from earnest.domain.sweep import DifferenceKind, DifferenceState, SweepState
from earnest.doors.cli import screen
from earnest.doors.cli.exits import ExitCode
from earnest.doors.cli.opening import Desk, Opening
from earnest.doors.cli.options import Limit
from earnest.doors.cli.verbs import desk_command, opening_command

if TYPE_CHECKING:
    from earnest.domain.sweep import Difference, Sweep

commands = typer.Typer(help="Sweeps: what providers did beside what is recorded.")

_COLUMNS = ("id", "effect", "since", "state", "listed", "matched", "settled", "finished", "why")
_DIFFERENCES = ("id", "effect", "kind", "why", "reference", "operation", "at", "state", "note")
_LOOK_EVERY = 0.3  # seconds

SweepId = Annotated[str, typer.Argument(metavar="SWEEP", help="The sweep's id, such as sweep_01….")]
DifferenceId = Annotated[
    str, typer.Argument(metavar="DIFFERENCE", help="The difference's id, such as diff_01….")
]
Effect = Annotated[str, typer.Argument(metavar="EFFECT", help="Its kind, such as bank.refund.")]
OfEffect = Annotated[str | None, typer.Option("--effect", help="Only of this effect.")]


@opening_command(commands, loads_apps=True)
def run(
    opening: Opening,
    effect: Effect,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="From when on, such as 2026-01-31 or 2026-01-31T12:00:00Z; on from the last "
            "complete sweep if not given.",
        ),
    ] = None,
) -> ExitCode:
    """Compare what a provider lists with what is recorded, and show what differs. It is done here
    if the effect is known here (--app), else by a worker. Exit code 1 if anything that it found is
    open, or the list was incomplete."""
    instant = None if since is None else _read_instant(since)

    async def act(desk: Desk) -> ExitCode:
        from earnest.engine.sweeping import requesting

        asked = await requesting.request(desk.engine, desk.actor, effect, instant)
        done = await _make(desk, asked.sweep)
        await _show(desk, done)
        counts = await requesting.open_counts(desk.engine, done)
        well = done.state is SweepState.COMPLETE and not any(counts.values())
        return ExitCode.OK if well else ExitCode.FAILED

    return opening.at_desk(act)


@desk_command(commands, "list")
async def list_sweeps(
    desk: Desk,
    effect: OfEffect = None,
    state: Annotated[
        SweepState | None, typer.Option("--state", help="Only sweeps in this state.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List sweeps, the newest first."""
    from earnest.engine.sweeping import requesting

    found = await requesting.list_sweeps(desk.engine, desk.actor, effect, state, None, limit)
    desk.print_rows(_COLUMNS, found, _row, desk.shown.show_sweep)


@desk_command(commands)
async def show(desk: Desk, sweep: SweepId, limit: Limit = 50) -> None:
    """Show a sweep and what it found."""
    from earnest.engine.sweeping import requesting

    found = await requesting.find_sweep(desk.engine, desk.actor, ids.read("sweep", sweep))
    await _show(desk, found, limit)


@desk_command(commands)
async def differences(
    desk: Desk,
    state: Annotated[
        DifferenceState | None, typer.Option("--state", help="Only differences in this state.")
    ] = DifferenceState.OPEN,
    effect: OfEffect = None,
    kind: Annotated[
        DifferenceKind | None, typer.Option("--kind", help="Only differences of this kind.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List what sweeps found and nobody has seen to yet, the oldest first."""
    from earnest.engine.sweeping import requesting
    from earnest.store.sweeps import DifferenceFilter

    only = DifferenceFilter(state and state.value, effect, kind and kind.value)
    found = await requesting.list_differences(desk.engine, desk.actor, only, None, limit)
    desk.print_rows(_DIFFERENCES, found, _difference_row, desk.shown.show_difference)


@desk_command(commands)
async def close(
    desk: Desk,
    difference: DifferenceId,
    note: Annotated[str, typer.Option("--note", help="What you found out or did about it.")],
) -> None:
    """Close a difference that was seen to. Sweeps do not report it any more."""
    from earnest.engine.sweeping import requesting

    wanted = ids.read("diff", difference)
    closed = await requesting.close(desk.engine, desk.actor, wanted, note)
    desk.print_row(_DIFFERENCES, closed, _difference_row, desk.shown.show_difference)


# ---- what the commands do ----------------------------------------------------------------------


async def _make(desk: Desk, sweep: Sweep) -> Sweep:
    """Makes it here if that can be done, and follows it to its end."""
    from earnest.engine.sweeping import requesting
    from earnest.engine.sweeping.sweeping import SweepSettings, take_and_sweep

    making = asyncio.create_task(take_and_sweep(desk.engine, SweepSettings(), sweep))
    try:
        with screen.status(f"{sweep.effect}: waiting for a sweeper") as say:
            while True:
                now = await requesting.find_sweep(desk.engine, desk.actor, sweep.sweep_id)
                if now.final:
                    return now
                if now.state is SweepState.RUNNING:
                    say(_progress(now))
                if making.done():  # somebody else makes it
                    await asyncio.sleep(_LOOK_EVERY)
                else:
                    await asyncio.wait({making}, timeout=_LOOK_EVERY)
                if making.done():
                    making.result()
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)


def _progress(now: Sweep) -> str:
    stage = "" if now.stage is None else now.stage.replace("_", " ")
    upto = "" if now.listed_to is None else f", up to {now.listed_to:%Y-%m-%d %H:%M}"
    return f"{now.effect}: {stage}, {now.counts.listed} listed{upto}"


async def _show(desk: Desk, sweep: Sweep, limit: int = 1000) -> None:
    from earnest.engine.sweeping import requesting

    counts = await requesting.open_counts(desk.engine, sweep)
    found = await requesting.differences_of(desk.engine, desk.actor, sweep, None, limit)
    detail = desk.shown.show_sweep_detail(sweep, counts)
    if desk.as_json:
        items = [desk.shown.show_difference(one) for one in found]
        screen.print_json({**detail, "differences": items})
        return
    facts = {name: detail[name] for name in detail if name not in ("links", "state", "counts")}
    state = screen.state(sweep.state)
    screen.print_facts({"id": facts.pop("id"), "state": state, **facts, **detail["counts"]})
    if found:
        screen.say("")
        screen.print_table(_DIFFERENCES, [_difference_row(one) for one in found])


def _row(sweep: Sweep) -> tuple[object, ...]:
    counts = sweep.counts
    return (
        ids.show("sweep", sweep.sweep_id),
        sweep.effect,
        sweep.since,
        screen.state(sweep.state),
        counts.listed,
        counts.matched,
        counts.settled,
        sweep.finished_at,
        sweep.why,
    )


def _difference_row(found: Difference) -> tuple[object, ...]:
    told = found.found
    operation = told.operation_id
    return (
        ids.show("diff", found.difference_id),
        found.effect,
        told.kind.value,
        told.why.value,
        told.external_ref,
        told.listed_id if operation is None else ids.show("op", operation),
        told.happened_at,
        screen.state(found.state),
        found.note,
    )


def _read_instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            "--since is a day or a time, such as 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)

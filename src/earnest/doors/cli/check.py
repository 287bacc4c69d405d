"""`earnest check`: would this code break runs that are in flight?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earnest.domain import ids
from earnest.domain.errors import Failed, SettingInvalid
from earnest.doors.cli import screen
from earnest.doors.cli.apart import ChildEnded, Tell, apart
from earnest.doors.cli.exits import ExitCode
from earnest.doors.cli.opening import Opening
from earnest.doors.cli.verbs import opening_command

if TYPE_CHECKING:
    from earnest.engine.inspection.checking import Asked, Checked
    from earnest.engine.process.engine import Engine
    from earnest.store.histories import InFlight

    Runs = Sequence[InFlight]

_COLUMNS = ("run", "scope", "kind", "status", "verdict", "why")


def add_to(program: typer.Typer) -> None:
    opening_command(program, loads_apps=True, has_scope=False)(check)


def check(
    opening: Opening,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only runs of this kind; may be repeated.")
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", min=1, max=100, metavar="PERCENT", help="Check a part.")
    ] = 100,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Check this many at most.")] = 10_000,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="How long one handler may take.")
    ] = 5.0,
    known_only: Annotated[
        bool, typer.Option("--known-only", help="Kinds that no given app has belong to others.")
    ] = False,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="What is unclear does not fail the check.")
    ] = False,
) -> ExitCode:
    """Replay the runs in flight against this code; name those that it would break.

    Nothing is written, called or sent; the handlers' own code between their steps does run. Exit
    code 0 if all fit, 1 if any would break or is unclear.
    """
    from earnest.engine.inspection.checking import Asked

    asked = Asked(kind or None, sample, limit, seconds, known_only)
    if not opening.told.apps:
        raise SettingInvalid("name the app to check: --app module:attribute, or EARNEST_APP")
    found = _check_all(
        asked,
        lambda runs, tell: opening.in_lobby(lambda lobby: _check(lobby.engine, asked, runs, tell)),
    )
    counts = Counter(one.verdict.value for one in found)
    if opening.as_json:
        screen.print_json(_as_json(found, counts, asked))
    else:
        _tell(found, counts, asked)
    failed = counts["breaks"] + (0 if lenient else counts["unclear"])
    return ExitCode.FAILED if failed else ExitCode.OK


def _check_all(asked: Asked, work: Callable[[Runs | None, Tell], object]) -> list[Checked]:
    """Checks them in a child process. Where a handler ends that, the runs behind it are checked by
    another one."""
    from earnest.engine.inspection import checking

    found: list[Checked] = []
    runs: Runs | None = None
    while runs is None or runs:
        answers = apart(lambda tell, left=runs: work(left, tell))  # type: ignore[misc]
        try:
            runs = next(answers)
            for one in answers:
                runs = runs[1:]
                found += [] if one is None else [one]
            return found
        except ChildEnded as ended:
            if not runs:
                raise Failed(f"the app ended the process of the check {ended}") from None
            found.append(checking.ended_process(runs[0], str(ended)))
            runs = runs[1:]
    return found


async def _check(engine: Engine, asked: Asked, left: Runs | None, tell: Tell) -> None:
    """Tells which runs it will check, and then what came of each."""
    from earnest.engine.inspection import checking

    runs = await checking.list_runs(engine, asked) if left is None else left
    tell(runs)
    with checking.alone(), screen.progress("checking runs", len(runs)) as advance:
        async for one in checking.check(engine, runs, asked):
            advance()
            tell(one)


def _as_json(found: Sequence[Checked], counts: Counter[str], asked: Asked) -> dict[str, Any]:
    return {
        "checked": len(found),
        "limited": len(found) >= asked.limit,
        **{verdict: counts[verdict] for verdict in ("fits", "breaks", "unclear")},
        "runs": [one.as_json() for one in found if one.verdict != "fits"],
    }


def _tell(found: Sequence[Checked], counts: Counter[str], asked: Asked) -> None:
    told = [one for one in found if one.verdict != "fits"]
    if told:
        screen.print_table(_COLUMNS, [_row(one) for one in told])
        screen.say("")
    more = f"; more are in flight, see --limit {asked.limit}" if len(found) >= asked.limit else ""
    screen.say(
        f"{len(found)} runs in flight were checked: {counts['fits']} fit, {counts['breaks']} would "
        f"break, {counts['unclear']} are unclear{more}"
    )


def _row(one: Checked) -> tuple[object, ...]:
    why = f"{one.code}: {one.detail}"
    return (ids.show("run", one.run_id), one.scope_id, one.kind, one.status.value,
            screen.state(one.verdict), why)  # fmt: skip

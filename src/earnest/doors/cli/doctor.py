"""`earnest doctor`: is the database fit, and does the work in it move?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from earnest.domain.errors import DatabaseUnavailable, HomeUnusable, SchemaMismatch
from earnest.doors.cli import screen
from earnest.doors.cli.exits import ExitCode, code_of
from earnest.doors.cli.opening import Opening
from earnest.doors.cli.verbs import opening_command

if TYPE_CHECKING:
    from pathlib import Path

    from earnest.engine.inspection.doctoring import Named
    from earnest.engine.process.engine import Engine


def add_to(program: typer.Typer) -> None:
    opening_command(program, has_scope=False)(doctor)


def doctor(
    opening: Opening,
    strict: Annotated[
        bool, typer.Option("--strict", help="What is worth a look fails it as well.")
    ] = False,
) -> ExitCode:
    """Look at the database and the work in it; say what is not well and what to do.

    Exit code 0 if all is well, 1 if something is bad (with --strict: or worth a look), 3 if the
    database cannot be reached or does not fit.
    """
    embedded = None if opening.told.database_url else opening.told.home
    try:
        found = opening.in_lobby(lambda lobby: _diagnose(lobby.engine, embedded))
    except (DatabaseUnavailable, HomeUnusable, SchemaMismatch) as error:
        _show([_unopened(error)], opening.as_json)
        return code_of(error)
    _show(found, opening.as_json)
    levels = {one.finding.level.value for one in found}
    failed = "bad" in levels or (strict and "warn" in levels)
    return ExitCode.FAILED if failed else ExitCode.OK


async def _diagnose(engine: Engine, home: Path | None) -> list[Named]:
    from earnest.engine.inspection.artifact_checks import ARTIFACT_CHECKS
    from earnest.engine.inspection.doctoring import Patient, diagnose
    from earnest.engine.inspection.server_checks import SERVER_CHECKS
    from earnest.engine.inspection.work_checks import WORK_CHECKS

    return await diagnose(Patient(engine, home), [*SERVER_CHECKS, *WORK_CHECKS, *ARTIFACT_CHECKS])


def _unopened(error: DatabaseUnavailable | HomeUnusable | SchemaMismatch) -> Named:
    from earnest.engine.inspection.doctoring import Named, bad

    detail, _, advice = error.detail.partition("; ")
    return Named("opening", bad(detail, advice))


def _show(found: Sequence[Named], as_json: bool) -> None:
    counts = Counter(one.finding.level.value for one in found)
    if as_json:
        healthy = counts["ok"] == len(found)
        screen.print_json({"healthy": healthy, "checks": [one.as_json() for one in found]})
        return
    screen.print_table(
        ("check", "", "finding", "what to do"),
        [
            (one.check, screen.state(one.finding.level), one.finding.detail, one.finding.advice)
            for one in found
        ],
    )
    screen.say(f"\n{counts['ok']} ok, {counts['warn']} worth a look, {counts['bad']} bad")

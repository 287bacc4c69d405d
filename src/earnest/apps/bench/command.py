"""`earnest bench`: measures this installation and prints one table or one JSON object."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from earnest.doors.cli import logs, screen
from earnest.doors.cli.loop import run_in_loop
from earnest.doors.cli.options import DatabaseUrl, Json
from earnest.doors.cli.parts import Parts

if TYPE_CHECKING:
    from earnest.apps.bench.figures import Figure, Value, Values

Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="NAME",
        help="Measure this figure and what it is compared with; may be repeated.",
        show_default=False,
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Do very little: shows that it works, figures mean nothing.")
]


def add_to(program: typer.Typer) -> None:
    program.command("bench")(bench)


def bench(
    context: typer.Context,
    only: Only = None,
    quick: Quick = False,
    database_url: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Measure how fast it is here, in three rounds on a PostgreSQL of its own with default
    durability, or on an empty database; takes some minutes."""
    _require_known(only or [])
    logs.configure(logs.LogFormat.TEXT, level=logging.ERROR)
    parts: Parts = context.obj
    values = run_in_loop(_measure(parts, database_url or None, only or [], quick))
    if as_json:
        screen.print_json_line(values)
    else:
        _print_table(values)


def _require_known(names: list[str]) -> None:
    from earnest.apps.bench.figures import NAMES

    for name in names:
        if name not in NAMES:
            raise typer.BadParameter(f"there is no figure {name!r}; there are: {', '.join(NAMES)}")


async def _measure(
    parts: Parts, url: str | None, only: list[str], quick: bool
) -> dict[str, Value | None]:
    from earnest.apps.bench.bench import QUICK, Bench, Sizes
    from earnest.apps.bench.database import bench_database
    from earnest.apps.bench.rounds import play

    async with bench_database(url, _say) as database:
        return await play(Bench(parts, database, QUICK if quick else Sizes()), only, _say)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


# ---- the table ---------------------------------------------------------------------------------


def _print_table(values: Values) -> None:
    from earnest.apps.bench.figures import FIGURES

    rows = [_row(figure, values) for figure in FIGURES if values[figure.name] is not None]
    screen.print_table(["figure", "measured", "", "ratio", "of", "is"], rows)


def _row(figure: Figure, values: Values) -> list[object]:
    from earnest.apps.bench.figures import ratio

    stands = ratio(figure, values)
    compared = ["", ""] if stands is None else [f"{stands:.2f}", figure.beside or ""]
    return [figure.name, _shown(values[figure.name]), figure.unit, *compared, figure.means]


def _shown(value: Value | None) -> str:
    if isinstance(value, dict):
        return " / ".join(f"{name} {_shown(part)}" for name, part in value.items())
    return "" if value is None else f"{value:,}"

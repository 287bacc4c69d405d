"""`earnest migrate`: the database's schema."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from earnest.domain.errors import SchemaMismatch
from earnest.doors.cli import logs, screen
from earnest.doors.cli.loop import run_in_loop
from earnest.doors.cli.opening import Opening
from earnest.doors.cli.verbs import opening_command


def add_to(program: typer.Typer) -> None:
    opening_command(program, has_scope=False)(migrate)


def migrate(
    opening: Opening,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if something is missing.")
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print all migrations as SQL; touch no database.")
    ] = False,
) -> None:
    """Bring the database's schema up to date; several at once wait for each other."""
    if check and sql:
        raise typer.BadParameter("choose one of --check and --sql")
    if sql:
        typer.echo(opening.parts.migrations())
        return
    logs.configure(logs.LogFormat.TEXT, level=logging.ERROR)
    names = run_in_loop(opening.parts.migrate(opening.told, check_only=check))
    if opening.as_json:
        screen.print_json({"missing" if check else "applied": names})
    elif not check:
        screen.say("\n".join([*(f"applied {name}" for name in names), "the schema is up to date"]))
    if check and names:
        raise SchemaMismatch(f"the database lacks {', '.join(names)}; run `earnest migrate` first")

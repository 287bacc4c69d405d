"""`earnest migrate`: the database's schema."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from earnest.domain.errors import SchemaMismatch
from earnest.doors.cli import logs, screen
from earnest.doors.cli.loop import run_in_loop
from earnest.doors.cli.options import DatabaseUrl, Home, Json, told
from earnest.doors.cli.parts import Parts


def add_to(program: typer.Typer) -> None:
    program.command("migrate")(migrate)


def migrate(
    context: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if something is missing.")
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print all migrations as SQL; touch no database.")
    ] = False,
    home: Home = None,
    database_url: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Bring the database's schema up to date; several at once wait for each other."""
    parts: Parts = context.obj
    if check and sql:
        raise typer.BadParameter("choose one of --check and --sql")
    if sql:
        typer.echo(parts.migrations())
        return
    logs.configure(logs.LogFormat.TEXT, level=logging.ERROR)
    asked = told(home, database_url, None)
    names = run_in_loop(parts.migrate(asked, check_only=check))
    if as_json:
        screen.print_json({"missing" if check else "applied": names})
    elif not check:
        screen.say("\n".join([*(f"applied {name}" for name in names), "the schema is up to date"]))
    if check and names:
        raise SchemaMismatch(f"the database lacks {', '.join(names)}; run `earnest migrate` first")

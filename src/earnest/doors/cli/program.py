"""The program `earnest`: its nouns, what all commands share, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from earnest.doors.cli import (
    approvals,
    artifacts,
    audit,
    check,
    database_roles,
    doctor,
    events,
    inbox,
    migrate,
    operations,
    outbox,
    principals,
    processes,
    run_logs,
    runs,
    scopes,
    simulate,
    sweeps,
    tokens,
    webhooks,
)
from earnest.doors.cli.exits import EPILOG, ExitCode, tell
from earnest.doors.cli.parts import Parts

AddCommands = Callable[[typer.Typer], None]
"""Adds an app's own commands to the program."""


def run(
    parts: Parts, *, more: Sequence[AddCommands] = (), arguments: Sequence[str] | None = None
) -> int:
    """Reads the command line (`sys.argv` without `arguments`), calls, and returns the exit code.
    Errors end as one line on standard error."""
    program = build(more)
    try:
        code = program(args=arguments, prog_name="earnest", standalone_mode=False, obj=parts)
    except (Exception, KeyboardInterrupt) as error:
        return tell(error)
    return code if isinstance(code, int) else ExitCode.OK


def build(more: Sequence[AddCommands] = ()) -> typer.Typer:
    program = typer.Typer(
        help="Work that costs money or cannot be taken back, done at most once.",
        epilog=EPILOG,
        invoke_without_command=True,
        callback=_begin,
        add_completion=False,
        pretty_exceptions_enable=False,
        # An option without a variable of its own has EARNEST_<COMMAND>_<OPTION>.
        context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "EARNEST"},
    )
    for add in (
        processes.add_to,
        migrate.add_to,
        check.add_to,
        doctor.add_to,
        events.add_to,
        simulate.add_to,
        *more,
    ):
        add(program)
    run_logs.add_to(runs.commands)
    for name, noun in {
        "runs": runs.commands,
        "operations": operations.commands,
        "artifacts": artifacts.commands,
        "approvals": approvals.commands,
        "sweeps": sweeps.commands,
        "scopes": scopes.commands,
        "principals": principals.commands,
        "tokens": tokens.commands,
        "webhooks": webhooks.commands,
        "outbox": outbox.commands,
        "inbox": inbox.commands,
        "roles": database_roles.commands,
        "audit": audit.commands,
    }.items():
        program.add_typer(
            noun, name=name, callback=show_help_without_command, invoke_without_command=True
        )
    return program


def _show_version(context: typer.Context, asked: bool) -> None:
    if asked:
        parts: Parts = context.obj
        typer.echo(f"earnest {parts.version}")
        raise typer.Exit


def _begin(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Say the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    show_help_without_command(context)


def show_help_without_command(context: typer.Context) -> None:
    """A noun alone shows what it can do."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())

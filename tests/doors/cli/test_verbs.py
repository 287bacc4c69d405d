"""What all commands have in common, whichever noun they belong to."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from earnest.doors.cli.program import build
from tests.doors.cli.program import Program, commands

NOWHERE = "postgresql://127.0.0.1:1/nowhere"
STAYING = {"earnest serve", "earnest worker", "earnest simulate"}
OF_NO_SCOPE = {
    "earnest migrate",
    "earnest check",
    "earnest doctor",
    "earnest scopes list",
    "earnest scopes create",
    "earnest artifacts collect",
    "earnest artifacts quota",
}
PRINTS_BYTES = {"earnest artifacts get"}


@pytest.mark.parametrize(
    "words",
    [
        ["webhooks", "remove", "sink_01"],
        ["outbox", "nats", "remove", "sink_01"],
        ["inbox", "sources", "remove", "bank"],
        ["outbox", "replay", "--sink", "sink_01"],
        ["runs", "cancel"],
        ["runs", "list", "--label", "no-value"],
        ["runs", "submit", "demo.echo", "{"],
        ["principals", "set", "anna"],
        ["audit", "list", "--since", "yesterday"],
        ["sweeps", "run", "bank.refund", "--since", "yesterday"],
        ["migrate", "--check", "--sql"],
    ],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_is_refused_before_a_database_is_opened(
    program: Program, words: list[str]
) -> None:
    assert "Invalid value" in program.on(EARNEST_DATABASE_URL=NOWHERE).refused(2, *words)


def test_every_command_says_the_same_about_where_it_acts() -> None:
    found: dict[str, dict[str, Any]] = {}
    for path, command in commands(get_command(build())):
        if not hasattr(command, "commands") and path not in STAYING:
            found[path] = {one.name: one for one in command.params if one.opts[0].startswith("-")}
    for name, missing in {
        "home": set(),
        "database_url": set(),
        "scope": OF_NO_SCOPE,
        "as_json": PRINTS_BYTES,
    }.items():
        assert {path for path in found if name not in found[path]} == missing
        having = [options[name] for options in found.values() if name in options]
        assert len({(tuple(one.opts), one.envvar, one.help) for one in having}) == 1
        # The last ones of each help, one below the other.
    for options in found.values():
        shared = [name for name in options if name in {"home", "database_url", "scope", "as_json"}]
        assert list(options)[-len(shared) :] == shared

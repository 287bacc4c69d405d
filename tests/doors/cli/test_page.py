"""The page on the command line says what the program says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from earnest.apps.demo import command as demo
from earnest.doors.cli import exits
from earnest.doors.cli.program import build
from earnest.engine.process.settings import EngineSettings
from tests.doors.cli.program import commands

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def program() -> Any:
    return get_command(build([demo.add_to]))


def test_the_page_names_every_command(page: str, program: Any) -> None:
    rows = [line for line in page.splitlines() if line.startswith("| `earnest ")]
    paths = [path for path, command in commands(program) if not hasattr(command, "commands")]
    assert len(paths) > 10
    missing = [path for path in paths if not any(_names(row, path.split()) for row in rows)]
    assert missing == []


def _names(row: str, words: list[str]) -> bool:
    """A row names a noun's commands one after the other: `earnest runs list` `show`."""
    whole, noun = " ".join(words), " ".join(words[:2])
    return f"`{whole}`" in row or (row.startswith(f"| `{noun} ") and f"`{words[-1]}`" in row)


def test_the_page_names_every_variable_that_commands_share(page: str, program: Any) -> None:
    variables = {
        option.envvar
        for _, command in commands(program)
        for option in command.params
        if isinstance(option.envvar, str)
    }
    assert len(variables) > 10
    assert [name for name in sorted(variables) if f"`{name}`" not in page] == []


def test_the_page_and_the_program_give_the_same_exit_codes(page: str) -> None:
    table = (exits.__doc__ or "").split("| --- | --- |\n")[1].split("\n\n")[0]
    assert table in page
    assert {int(line.split("|")[1]) for line in table.splitlines()} == set(exits.ExitCode)


def test_the_page_and_the_program_give_the_defaults_of_the_engine(page: str, program: Any) -> None:
    engine = EngineSettings()
    for name, default in {
        "concurrency": str(engine.concurrency),
        "drain": f"{engine.drain.total_seconds():g}",
    }.items():
        options = [
            option
            for path in ("serve", "worker")
            for option in program.commands[path].params
            if option.name == name
        ]
        assert [option.show_default for option in options] == [default, default]
        (row,) = [line for line in page.splitlines() if f"`--{name}` |" in line]
        assert default in row.split()

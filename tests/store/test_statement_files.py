"""The files of named SQL, and the thirty lines that read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from earnest.store import statements
from earnest.store.database import Database

SOURCE = Path(str(resources.files("earnest")))
NAMED = re.compile(r'(?:\bsql|\.fetch|\.fetchrow)\(\s*"([a-z_]+)"')
NAME = re.compile(r'"([a-z_]+)"')


def test_a_name_starts_a_statement_and_what_stands_before_is_commentary() -> None:
    found = statements.split(
        "-- What this file is about.\n\n"
        "-- name: first\n-- Why.\nSELECT 1;\n\n"
        "-- name: second\nSELECT 2;\n"
    )
    assert found == {"first": "-- Why.\nSELECT 1;", "second": "SELECT 2;"}


def test_a_file_without_a_name_has_no_statement() -> None:
    assert statements.split("-- Nothing here.\nSELECT 1;\n") == {}


def test_a_name_that_stands_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sql"
    folder.mkdir()
    for file in ("a.sql", "b.sql"):
        (folder / file).write_text("-- name: same\nSELECT 1;\n")
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match=r"same stands twice \(again in b\.sql\)"):
        statements.statements.__wrapped__()


def _texts() -> Iterator[str]:
    for file in sorted(SOURCE.rglob("*.py")):
        yield file.read_text(encoding="utf-8")


def test_every_statement_is_used_and_every_used_one_is_there() -> None:
    there = set(statements.statements())
    asked_for = {name for text in _texts() for name in NAMED.findall(text)}
    mentioned = {name for text in _texts() for name in NAME.findall(text)}
    assert asked_for - there == set()
    assert there - mentioned == set()


def test_every_pick_that_locks_is_made_once() -> None:
    """Rows that are locked in a part of a statement are locked in a materialized part. Any other
    the planner may ask again for each row that the statement changes: it goes beyond its limit."""
    locking = re.compile(r"FOR (?:NO KEY )?UPDATE")
    wanting = [
        name
        for name, text in statements.statements().items()
        if len(locking.findall(re.sub(r"--.*", "", text))) > text.count("AS MATERIALIZED (")
        and re.search(r"\b(?:UPDATE [a-z_]+ |DELETE FROM)", text)
    ]
    assert wanting == []


async def test_the_server_understands_every_statement(database: Database) -> None:
    misfits = {}
    async with database.connection() as tx:
        for name, text in statements.statements().items():
            prepared = await tx.prepare(text)
            numbers = {int(number) for number in re.findall(r"\$(\d+)", text)}
            if numbers != set(range(1, len(prepared.get_parameters()) + 1)):
                misfits[name] = numbers
    assert misfits == {}

"""The tables in the docs equal the tables in the code, and every kept promise has a test."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from earnest.domain import approval, operation, run

ROOT = Path(__file__).parents[2]


def rows(heading: str) -> dict[str, list[set[str]]]:
    """The rows of the first table under a heading of `docs/states.md`, by their first cell."""
    text = (ROOT / "docs/states.md").read_text(encoding="utf-8").split(f"## {heading}\n", 1)[1]
    table = re.findall(r"(?m)^\|(.+)\|$", text.split("\n\n* ")[0].split("\n\nReleased")[0])
    found: dict[str, list[set[str]]] = {}
    for line in table[2:]:
        cells = [cell.strip() for cell in line.split("|")]
        found[cells[0]] = [{word for word in cell.split(", ") if word} for cell in cells[1:]]
    return found


def test_the_moves_of_a_run_in_the_docs_are_those_of_the_code() -> None:
    told = {
        name: (sources, targets, ", ".join(sorted(by)))
        for name, (sources, targets, by) in rows("Runs").items()
    }
    meant = {
        move.name: (set(move.sources), set(move.targets), ", ".join(sorted(move.by.split(", "))))
        for move in run.MOVES.values()
    }
    assert told == meant


def test_the_moves_of_an_operation_in_the_docs_are_those_of_the_code() -> None:
    told = {name: tuple(cells) for name, cells in rows("Operations").items()}
    meant = {move.name: (set(move.sources), set(move.targets)) for move in operation.MOVES.values()}
    assert told == meant


def test_the_moves_of_an_approval_in_the_docs_are_those_of_the_code() -> None:
    told = {
        name: (sources, targets, ", ".join(sorted(by)))
        for name, (sources, targets, by) in rows("Approvals").items()
    }
    meant = {
        move.name: (set(move.sources), set(move.targets), ", ".join(sorted(move.by.split(", "))))
        for move in approval.MOVES.values()
    }
    assert told == meant


def test_every_promise_that_is_kept_is_named_by_a_test() -> None:
    text = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
    kept = re.findall(r"(?m)^\| (P\d+) \|.*\| yes", text)
    tests = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.parent.name != "architecture"
    )
    missing = [promise for promise in kept if not re.search(rf"\b{promise}\b", tests)]
    assert len(kept) >= 15
    assert not missing


def test_the_pythons_that_are_named_are_the_same_everywhere() -> None:
    """What is installed on, what is said, and what setup takes: nothing that was not tried."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = re.findall(r":: (3\.\d+)", "\n".join(project["classifiers"]))
    minors = [int(one.partition(".")[2]) for one in listed]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert project["requires-python"] == f">=3.{minors[0]},<3.{minors[-1] + 1}"
    for file in ("README.md", "CONTRIBUTING.md", "scripts/setup"):
        text = (ROOT / file).read_text("utf-8")
        assert f"{', '.join(listed[:-1])} or {listed[-1]}" in text, file
    taken = re.findall(r"(3\.\d+)\.\*", (ROOT / "scripts/setup").read_text("utf-8"))
    assert taken == listed

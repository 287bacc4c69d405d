"""Reads the repository as files and syntax trees. The rules are in the tests beside this file."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "earnest"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One Python file: its path from the repository's root, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))


def _read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path.relative_to(ROOT).as_posix(), text, ast.parse(text))


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the package, committed or not."""
    found = tuple(_read(path) for path in sorted(SOURCE.rglob("*.py")))
    assert found, f"no modules under {SOURCE}"
    return found


@cache
def tracked_files() -> tuple[str, ...]:
    """The paths that git tracks and that are still there, from the repository's root."""
    git = shutil.which("git")
    assert git, "the repository's files are found by git, which is not installed"
    listed = subprocess.run(
        [git, "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = tuple(path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file())
    assert found, "git tracks no files here"
    return found

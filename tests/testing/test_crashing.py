"""A process that is told to die at a point dies there, really, and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from earnest.domain import crash_points
from earnest.domain.errors import SettingInvalid
from earnest.testing.crashing import Crash, crash_at, install_from_environment

PASSES = """
from earnest.domain.crash_points import reach
from earnest.testing.crashing import install_from_environment
install_from_environment()
for point in ("begin.before", "begin.after", "begin.before", "begin.after"):
    print(point, flush=True)
    reach(point)
print("alive", flush=True)
"""


def _start(environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PASSES],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("point", "passing", "lines"),
    [("begin.before", 1, 1), ("begin.after", 1, 2), ("begin.before", 2, 3), ("begin.after", 2, 4)],
)
def test_a_process_is_killed_at_that_passing_of_that_point(
    point: str, passing: int, lines: int, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    with _start(crash_at(point, passing=passing, report=report)) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(said.splitlines()) == lines
    assert report.read_text() == f"{point}:{passing} {process.pid}\n"


def test_a_frozen_process_goes_on_where_it_was() -> None:
    with _start(crash_at("begin.after", how="freeze")) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(process.pid, signal.SIGCONT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.splitlines()[-1] == "alive"


@pytest.mark.parametrize("environment", [{}, {"EARNEST_CRASH_AT": ""}], ids=["unset", "empty"])
def test_without_a_word_in_the_environment_nobody_dies(environment: dict[str, str]) -> None:
    with _start(environment) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.splitlines()[-1] == "alive"
    assert install_from_environment(environment) is None


def test_a_crash_is_read_as_it_is_written() -> None:
    for crash in (
        Crash("call.before"),
        Crash("settle.after", 3),
        Crash("reap.before", 2, "freeze"),
    ):
        assert Crash.parse(str(crash)) == crash
    assert Crash.parse("call.before") == Crash("call.before", 1, "kill")


@pytest.mark.parametrize(
    "text",
    ["operation.begun", "begin", "begin.after:0", "begin.after:two", "begin.after:1:maim", ":1"],
)
def test_a_crash_that_cannot_happen_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(SettingInvalid) as refused:
        install_from_environment({"EARNEST_CRASH_AT": text})
    assert len(refused.value.detail.splitlines()) == 1


def test_a_refused_crash_installs_nothing() -> None:
    with pytest.raises(SettingInvalid, match="there are: "):
        crash_at("nowhere.after")
    for point in crash_points.POINTS:
        crash_points.reach(point)

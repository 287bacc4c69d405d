"""A stranger's project: the built wheel in a virtual environment of its own, the fixtures as they
come with it, and tests that fail when the code under test sends twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "shop"

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("example")]


@dataclass(frozen=True)
class Result:
    """How a run of the project's tests ended, and which of them failed."""

    code: int
    said: str
    failed: set[str]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment into which the wheel was installed as users do."""
    folder = tmp_path_factory.mktemp("stranger")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    (wheel,) = folder.glob("earnest-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    made = folder / "venv" / "bin" / "python"
    wanted = [f"earnest[testing] @ {wheel.as_uri()}", "pytest-asyncio", "httpx2"]
    run(sys.executable, "-m", "pip", "--python", made, "install", "-q", "--no-compile", *wanted)
    return made


def run(*words: object) -> str:
    """A command that has to succeed, without what this process' environment says."""
    answer = subprocess.run(
        [str(word) for word in words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def environment() -> dict[str, str]:
    ours = ("PYTEST", "PYTHON", "EARNEST", "COVERAGE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def copy_of_the_project(folder: Path, *changed: tuple[str, str]) -> Path:
    """The project, with texts of its app replaced; each has to be there."""
    project = folder / "shop"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    code = (project / "shop" / "app.py").read_text(encoding="utf-8")
    for old, new in changed:
        assert code.count(old) == 1, f"the example has no single {old!r} any more"
        code = code.replace(old, new)
    (project / "shop" / "app.py").write_text(code, encoding="utf-8")
    return project


def run_tests(python: Path, project: Path, *options: str) -> Result:
    answer = subprocess.run(
        [python, "-m", "pytest", "-q", "--tb=short", *options],
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = answer.stdout.splitlines()
    failed = {line.split()[1].rsplit("::", 1)[1] for line in lines if line.startswith("FAILED")}
    return Result(answer.returncode, answer.stdout + answer.stderr, failed)


def test_the_project_of_a_stranger_passes_with_the_wheel_alone(
    python: Path, tmp_path: Path
) -> None:
    project = copy_of_the_project(tmp_path)
    where = "import earnest, pathlib; print(pathlib.Path(earnest.__file__).parent)"
    assert Path(run(python, "-c", where).strip()).is_relative_to(python.parents[1])
    result = run_tests(python, project)
    assert result.code == 0, result.said
    assert "15 passed" in result.said


MUTANTS = {
    "a new id for each call": (
        ('"operation_id": call.id', '"operation_id": __import__("uuid").uuid4().hex'),
        {
            "test_the_money_is_sent_once_although_the_reply_is_lost",
            "test_the_money_is_sent_once_although_the_worker_is_killed[call.after]",
            "test_the_id_of_the_operation_goes_along",
        },
    ),
    "a failed question is an absence": (
        ("if answer.status_code == 404:", "if answer.is_error:"),
        {"test_a_provider_that_cannot_tell_has_not_said_no[failing]"},
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_tests_of_the_project_notice_code_that_sends_twice(
    python: Path, tmp_path: Path, mutant: str
) -> None:
    change, caught_by = MUTANTS[mutant]
    only = " or ".join(name.partition("[")[0] for name in caught_by)
    result = run_tests(python, copy_of_the_project(tmp_path, change), "-k", only)
    assert result.code == 1, result.said
    assert result.failed >= caught_by, result.said


def test_the_plugin_can_be_left_out_and_then_has_no_fixtures(python: Path, tmp_path: Path) -> None:
    project = copy_of_the_project(tmp_path)
    listed = run_tests(python, project, "--fixtures", "-p", "no:earnest", "-o", "testpaths=")
    assert "earnest_engine" not in listed.said


def one_import_in(python: Path, name: str) -> float:
    """Milliseconds that the import of a module adds to a process that has pytest, at best."""
    code = (
        "import pytest, time; start = time.perf_counter(); "
        f"import {name}; print((time.perf_counter() - start) * 1000)"
    )
    return min(float(run(python, "-c", code)) for _ in range(5))


def test_a_run_that_does_not_use_the_plugin_pays_less_than_50_ms_for_it(python: Path) -> None:
    assert one_import_in(python, "earnest.testing.plugin") < 50

"""Who runs the tests is the project's affair: pytest-asyncio, anyio or nobody; xdist or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.test_example_project import environment

APP = """
from earnest import App, Context

app = App("greeter")


@app.run("greet")
async def greet(ctx: Context, name: str) -> str:
    return f"hello {name}"
"""
BODY = """
    await app.submit(greet, "Ada")
    assert_submitted(greet, input="Ada")
    await crash_at("claim.after")
    assert (await drain(to_the_end=True)).ended == {"succeeded": 1}
"""
WITH_ASYNCIO = f"""
import pytest
from greeter import app, greet


@pytest.mark.asyncio
async def test_with_asyncio(drain, assert_submitted, crash_at):{BODY}"""
WITH_ANYIO = f"""
import pytest
from greeter import app, greet


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_with_anyio(drain, assert_submitted, crash_at):{BODY}"""
WITH_NOBODY = f"""
from greeter import app, greet


def test_with_nobody(earnest_run, drain, assert_submitted, crash_at):
    earnest_run(story(drain, assert_submitted, crash_at))


async def story(drain, assert_submitted, crash_at):{BODY}"""
SETTINGS = """
[pytest]
earnest_app = greeter:app
pythonpath = .
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "greeter.py": APP,
        "test_with_asyncio.py": WITH_ASYNCIO,
        "test_with_anyio.py": WITH_ANYIO,
        "test_with_nobody.py": WITH_NOBODY,
        "pytest.ini": SETTINGS,
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run_tests(project: Path, *options: str) -> tuple[int, str]:
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", *options],
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.returncode, answer.stdout + answer.stderr


def test_any_runner_will_do_and_two_processes_do_not_meet(project: Path) -> None:
    code, said = run_tests(project, "-n", "2", "--dist", "each")
    assert code == 0, said
    assert "6 passed" in said


def test_without_pytest_asyncio_anyio_and_plain_tests_go_on(project: Path) -> None:
    (project / "test_with_asyncio.py").unlink()
    (project / "pytest.ini").write_text(SETTINGS.rpartition("asyncio")[0].rstrip("\n ") + "\n")
    code, said = run_tests(project, "-p", "no:asyncio", "-n", "0")
    assert code == 0, said
    assert "2 passed" in said


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("", "say which app is under test: set `earnest_app = shop:app`"),
        ("greter:app", "earnest_app: the app 'greter:app' cannot be imported"),
        ("greeter:greet", "earnest_app: 'greeter:greet' is a RunKind, not an earnest.App"),
    ],
)
def test_an_app_that_is_not_named_rightly_is_told_in_one_line(
    project: Path, named: str, told: str
) -> None:
    code, said = run_tests(project, "-n", "0", "-o", f"earnest_app={named}", "test_with_nobody.py")
    assert code == 1
    assert told in said

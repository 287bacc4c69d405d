"""`earnest events`: all runs of a scope, in one order."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.doors.cli.program import Program

ECHO = '{"message": "hello"}'


def _submit(program: Program) -> str:
    run_id: str = program.good("runs", "submit", "demo.echo", ECHO, "--json").json["run_id"]
    return run_id


def test_the_newest_events_of_all_runs_are_printed_and_then_it_ends(here: Program) -> None:
    run_ids = [_submit(here) for _ in range(3)]
    lines = [json.loads(line) for line in here.good("events", "--json").out.splitlines()]
    assert [line["run_id"] for line in lines] == run_ids
    assert [line["position"] for line in lines] == [1, 2, 3]
    newest = here.good("events", "--limit", "2").out.splitlines()
    assert [line.split()[1] for line in newest] == run_ids[1:]
    assert all("run.submitted" in line for line in newest)


def test_a_scope_without_events_prints_nothing(here: Program) -> None:
    assert here.good("events").out == ""


def test_what_happens_is_followed(here: Program) -> None:
    first = _submit(here)
    following = subprocess.Popen(
        [sys.executable, "-m", "earnest", "events", "--follow", "--json"],
        cwd=here.folder,
        env=here._environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert following.stdout is not None, "opened as a pipe"
        assert json.loads(following.stdout.readline())["run_id"] == first
        second = _submit(here)
        assert json.loads(following.stdout.readline())["run_id"] == second
    finally:
        following.kill()
        following.communicate()

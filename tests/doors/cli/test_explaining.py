"""`earnest runs explain`, and `earnest roles`."""

from __future__ import annotations

import asyncio
import shlex

import asyncpg

from tests.doors.cli.program import Program


def submit(here: Program, *words: str) -> str:
    return str(here.good("runs", "submit", *words, "--json").json["id"])


def test_a_run_that_nobody_takes_up_says_so_until_a_worker_lives(here: Program) -> None:
    run_id = submit(here, "demo.fail", '{"times": 19}')
    told = here.good("runs", "explain", run_id, "--json").json
    assert [one["code"] for one in told["reasons"]] == ["no_worker"]
    with here.started("worker"):
        here.wait_for_event(run_id, "run.retry_scheduled")
        codes = [
            one["code"] for one in here.good("runs", "explain", run_id, "--json").json["reasons"]
        ]
    assert "no_worker" not in codes
    here.good("runs", "cancel", run_id)
    told = here.good("runs", "explain", run_id, "--json").json
    assert (told["status"], told["reasons"][0]["code"]) == ("cancelled", "ended")


def test_people_read_the_reasons_and_the_command_that_moves_the_run_on(here: Program) -> None:
    run_id = submit(here, "demo.echo", '{"message": "a secret"}')
    here.good("runs", "cancel", run_id)
    told = here.good("runs", "explain", run_id).out
    assert "is cancelled since" in told
    assert "a secret" not in told
    (line,) = [line for line in told.splitlines() if "moved by caller" in line]
    command = line.split(": ")[1].split(" or ")[0]
    assert here.good(*shlex.split(command)[1:], "--json").json["retry_of"] == run_id


def test_a_run_that_is_not_there_is_one_line(here: Program) -> None:
    submit(here, "demo.echo", '{"message": "hello"}')
    unknown = "run_01m8pfskc6e458xvnxgwdfa6sq"
    assert "no such run" in here.refused(1, "runs", "explain", unknown)
    assert "no such run" in here.refused(1, "runs", "explain", "17")


def test_a_database_role_is_mapped_listed_and_unmapped(here: Program, database_url: str) -> None:
    here.good("tokens", "issue", "backend", "--role", "member", "--scope", "demo", "--new-scope")
    listed = here.good("roles", "list", "--json").json
    assert listed == {"scope": "demo", "items": []}
    name = asyncio.run(_role_of(database_url))
    assert "submits in scope demo as backend" in here.good("roles", "map", name, "backend").out
    listed = here.good("roles", "list", "--json").json
    assert listed["items"] == [{"role": name, "principal": "backend"}]
    assert "has no principal" in here.refused(1, "roles", "map", name, "nobody")
    assert "no database role" in here.refused(1, "roles", "map", "nobody at all", "backend")
    for _ in range(2):
        here.good("roles", "unmap", name)
    assert here.good("roles", "list", "--json").json["items"] == []


async def _role_of(url: str) -> str:
    """The role that this server has for sure: the one that owns it."""
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("SELECT session_user"))
    finally:
        await connection.close()

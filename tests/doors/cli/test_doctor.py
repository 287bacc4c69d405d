"""`earnest doctor` on real databases: one that is fit, one without work done, one that is away."""

from __future__ import annotations

from tests.doors.cli.program import Program

ECHO = '{"message": "a secret"}'


def levels(told: dict[str, object]) -> dict[str, str]:
    checks = told["checks"]
    assert isinstance(checks, list)
    return {one["check"]: one["level"] for one in checks}


def test_an_embedded_database_with_its_worker_is_well(program: Program) -> None:
    here = program.on(EARNEST_APP="earnest.apps.demo.app:app")
    with here.started("worker"):
        told = here.good("doctor", "--json").json
        assert set(levels(told).values()) == {"ok"}, told
        assert told["healthy"] is True
        assert "free of" in next(one["detail"] for one in told["checks"] if one["check"] == "disk")
        table = here.good("doctor", "--strict").out
    assert "23 ok, 0 worth a look, 0 bad" in table


def test_due_work_that_nobody_takes_up_is_bad_and_what_to_do_is_said(here: Program) -> None:
    here.good("runs", "submit", "demo.echo", ECHO)
    outcome = here.run("doctor", "--json")
    assert (outcome.code, outcome.json["healthy"]) == (1, False)
    (due,) = [one for one in outcome.json["checks"] if one["check"] == "due runs"]
    assert due["level"] == "bad"
    assert "1 of demo.echo in the lane default" in due["detail"]
    assert "earnest worker" in due["advice"]
    table = here.run("doctor")
    assert table.code == 1
    assert "demo.echo" in table.out
    assert "a secret" not in outcome.out + table.out


def test_a_database_that_is_away_is_a_finding_and_ends_with_code_3(
    here: Program, busy_port: int
) -> None:
    away = here.on(EARNEST_DATABASE_URL=f"postgresql://nobody@127.0.0.1:{busy_port}/none")
    outcome = away.run("doctor", "--json")
    assert outcome.code == 3
    assert levels(outcome.json) == {"opening": "bad"}
    assert "EARNEST_DATABASE_URL" in outcome.json["checks"][0]["advice"]

"""`earnest operations` and `earnest tokens`: the desk, and who may come in."""

from __future__ import annotations

import asyncio

import asyncpg

import earnest
from earnest.engine.process import binding
from earnest.engine.process.binding import Binding
from earnest.engine.process.engine import Engine
from earnest.store.database import Database
from earnest.testing.simulator import Simulator
from tests.doors.cli.program import Program, get

REFUND = '{"order_id": "%s", "amount": "20.00", "bank": "%s"}'


def refund_in_doubt(here: Program, simulator: Simulator, order: str, bank: str) -> str:
    """A refund that the bank did and gave no answer about; the id of its run, which is unknown."""
    simulator.put_fault("bank", "accept_then_drop", match=order)
    run_id = here.good("runs", "submit", "demo.refund", REFUND % (order, bank), "--json").json["id"]
    with here.started("worker"):
        here.wait_for_event(run_id, "run.unknown")
    return str(run_id)


def test_a_doubt_is_settled_on_the_desk_and_its_run_goes_on(
    here: Program, simulator: Simulator
) -> None:
    run_id = refund_in_doubt(here, simulator, "desk-1", "opaque")
    [doubtful] = here.good("operations", "list", "--state", "unknown", "--json").json["items"]
    assert doubtful["run_id"] == run_id
    assert doubtful["id"] in here.good("operations", "list").out
    verdict = ("--outcome", "submitted", "--receipt", '{"id": "r-1"}', "--evidence", "statement 7")
    stale = ("--if-version", str(doubtful["version"] - 1))
    line = here.refused(1, "operations", "resolve", doubtful["id"], *verdict, *stale)
    assert "look at it again" in line
    settled = here.good("operations", "resolve", doubtful["id"], *verdict, "--json").json
    assert (settled["state"], settled["resolution"]["evidence"]) == ("submitted", "statement 7")
    with here.started("worker"):
        assert here.good("runs", "watch", run_id).out.splitlines()[-1].startswith("succeeded")
    shown = here.good("operations", "show", doubtful["id"], "--json").json
    assert [move["move"] for move in shown["history"]] == ["reserve", "begin", "doubt", "resolve"]
    assert "statement 7" in here.good("operations", "show", doubtful["id"]).out
    assert len([one for one in simulator.truth("bank") if one["operation_id"] == shown["id"]]) == 1


def test_a_retry_that_would_send_again_what_was_submitted_has_to_be_told_to(
    here: Program, simulator: Simulator
) -> None:
    run_id = refund_in_doubt(here, simulator, "twice-1", "opaque")
    [doubtful] = here.good("operations", "list", "--state", "unknown", "--json").json["items"]
    here.good("runs", "cancel", run_id)
    verdict = ("--outcome", "submitted", "--receipt", '{"id": "r-1"}', "--evidence", "statement 7")
    here.good("operations", "resolve", doubtful["id"], *verdict)
    line = here.refused(1, "runs", "retry", run_id)
    assert f"({doubtful['id']})" in line
    assert "add --yes" in line
    explained = here.good("runs", "explain", run_id).out
    assert doubtful["id"] in explained
    assert "runs retry" not in explained
    assert here.good("runs", "retry", run_id, "--yes", "--json").json["revision"] == 2


def test_a_bank_that_can_be_asked_is_asked(here: Program, simulator: Simulator) -> None:
    simulator.put_fault("bank", "accept_then_drop", match="desk-2")
    here.good("runs", "submit", "demo.refund", REFUND % ("desk-2", "queryable"))
    with here.on(EARNEST_CRASH_AT="look_up.before").started("worker") as worker:
        worker.wait()
    [doubtful] = here.good("operations", "list", "--state", "unknown", "--json").json["items"]
    asked = here.outside.good("operations", "lookup", doubtful["id"], "--json").json
    assert (asked["state"], asked["resolution"]["evidence"]) == ("submitted", "found by its id")
    shown = here.good("operations", "show", doubtful["id"], "--json").json
    assert [one["answer"] for one in shown["lookups"]] == ["found"]


def test_a_bank_that_answers_no_questions_is_not_asked(here: Program, simulator: Simulator) -> None:
    refund_in_doubt(here, simulator, "desk-3", "opaque")
    [doubtful] = here.good("operations", "list", "--state", "unknown", "--json").json["items"]
    line = here.refused(1, "operations", "lookup", doubtful["id"])
    assert line == "this provider cannot be asked; settle the operation with evidence"


VERDICTS = {
    "outcome is `submitted`": ("--outcome", "maybe", "--evidence", "e"),
    "evidence is needed": ("--outcome", "released", "--evidence", " "),
    "contradicts 'released'": ("--outcome", "released", "--evidence", "e"),
}


def test_a_verdict_that_cannot_be_is_refused(here: Program) -> None:
    refund = REFUND % ("desk-4", "keyed")
    with here.started("worker"):
        here.good("runs", "submit", "demo.refund", refund, "--watch")
    [done] = here.good("operations", "list", "--json").json["items"]
    for told, verdict in VERDICTS.items():
        assert told in here.refused(1, "operations", "resolve", done["id"], *verdict)


def test_a_receipt_belongs_to_what_happened_and_only_to_it(here: Program) -> None:
    resolve = ("operations", "resolve", "op_01h455vb4pex5vsknk084sn02q", "--evidence", "e")
    for words in (("submitted",), ("submitted", "--receipt", "null")):
        line = here.refused(2, *resolve, "--outcome", *words)
        assert "`--outcome submitted` needs the provider's receipt: --receipt '{…}'" in line
    line = here.refused(2, *resolve, "--outcome", "released", "--receipt", '{"id": "a"}')
    assert "leave --receipt out" in line


def test_an_operation_that_is_not_there_is_not_found(here: Program) -> None:
    for words in (("show", "op_nothing"), ("lookup", "run_01h455vb4pex5vsknk084sn02q")):
        assert here.refused(1, "operations", *words).startswith("no such operation: ")


def test_a_token_opens_the_api_until_it_is_revoked(here: Program) -> None:
    words = ("--role", "member", "--new-scope", "--scope", "shop")
    token = here.good("tokens", "issue", "ann", *words).out.strip()
    token_id = token.split("_")[1]
    with here.started("serve", "--port", "0", "--no-worker") as server:
        assert get(server.url, "/v1/runs").status_code == 401
        assert get(server.url, "/v1/runs", token).status_code == 200
    here.good("tokens", "revoke", token_id)
    with here.started("serve", "--port", "0", "--no-worker") as server:
        assert get(server.url, "/v1/runs", token).status_code == 401
    assert "there is no such token" in here.refused(1, "tokens", "revoke", "0000")


def test_a_token_of_an_impossible_role_is_not_issued(here: Program) -> None:
    line = here.refused(1, "tokens", "issue", "ann", "--role", "owner")
    assert line == "there is no role 'owner'; there are: member, approver, operator, admin"


async def doubt_in(database_url: str, scope: str) -> None:
    """An operation of a program that stands alone, in doubt. The scope is not made."""
    async with Database(database_url) as database:
        bound = Binding(Engine(database), scope, "clerk")
        binding.bind(bound)
        try:
            async with earnest.operation(f"order of {scope}", Dropped, {}):
                raise AssertionError("it is in doubt")
        except earnest.InDoubt:
            return
        finally:
            binding.unbind(bound)


class Dropped(earnest.Effect[dict[str, str], dict[str, str]]):
    kind = "desk.dropped"
    recovery = "hold"

    async def submit(self, call: earnest.Call, request: dict[str, str]) -> dict[str, str]:
        raise ConnectionError("the line broke")


def test_who_looks_at_one_desk_is_told_of_doubts_on_others(
    here: Program, database_url: str
) -> None:
    """P3: also of those in a scope that nobody has made; and they can be looked at there."""
    for scope in ("shop", "ghost"):
        asyncio.run(doubt_in(database_url, scope))
    listed = here.good("operations", "list", "--state", "unknown", "--json")
    assert listed.json["items"] == []
    assert "in doubt are also in ghost (1), shop (1): look with --scope" in listed.err
    for scope in ("shop", "ghost"):
        found = here.good("operations", "list", "--scope", scope, "--json")
        [doubtful] = found.json["items"]
        assert (doubtful["state"], doubtful["name"]) == ("unknown", f"order of {scope}")
        verdict = ("--outcome", "released", "--evidence", "statement 7", "--scope", scope)
        here.good("operations", "resolve", doubtful["id"], *verdict)
    assert here.good("operations", "list").err == ""


def test_a_scope_that_is_not_there_is_refused_however_many_there_are(
    here: Program, database_url: str
) -> None:
    """P3: what is submitted there would be seen by nobody."""
    statement = """INSERT INTO earnest.scope (scope_id, created_at)
                   SELECT 'scope-' || number, now() FROM generate_series(1, 60) AS number"""

    async def make_many() -> None:
        connection = await asyncpg.connect(database_url)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(make_many())
    refund = ("runs", "submit", "demo.refund", REFUND % ("many-1", "opaque"))
    assert "there is no scope 'ghost'" in here.refused(1, *refund, "--scope", "ghost")
    here.good(*refund, "--scope", "scope-60")

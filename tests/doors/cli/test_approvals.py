"""`earnest approvals`: the exact request is shown, and what is decided is about that (P11)."""

from __future__ import annotations

from typing import Any

from earnest.domain import canonical
from earnest.testing.simulator import Simulator
from tests.doors.cli.program import Program

REFUND = '{"order_id": "%s", "amount": "20.00", "bank": "queryable", "needs_approval": true}'


def asked(here: Program, order: str) -> dict[str, Any]:
    """The approval that a refund of this order waits for."""
    run_id = here.good("runs", "submit", "demo.refund", REFUND % order, "--json").json["id"]
    with here.started("worker"):
        here.wait_for_event(run_id, "run.waiting")
    items = here.good("approvals", "list", "--status", "pending", "--json").json["items"]
    (found,) = [one for one in items if one["run_id"] == run_id]
    return dict(found)


def test_what_was_approved_on_the_command_line_is_what_the_bank_is_sent(
    here: Program, simulator: Simulator
) -> None:
    """P11."""
    found = asked(here, "cli-1")
    shown = here.good("approvals", "show", found["id"]).out
    assert '"order_id": "cli-1"' in shown
    assert '"amount": "20.00"' in shown
    told = here.good("runs", "explain", found["run_id"]).out
    assert f"earnest approvals approve {found['id']}" in told
    approved = here.good("approvals", "approve", found["id"], "--yes", "--note", "fine", "--json")
    assert (approved.json["status"], approved.json["note"]) == ("approved", "fine")
    with here.started("worker"):
        here.wait_for_event(found["run_id"], "run.succeeded")
    (deed,) = [
        one for one in simulator.truth("bank") if one["operation_id"] == found["operation_id"]
    ]
    request = {name: one for name, one in deed["request"].items() if name != "operation_id"}
    assert canonical.digest(canonical.encode(request)).hex() == found["digest"]
    again = here.good("approvals", "approve", found["id"], "--yes", "--json").json
    assert again == approved.json
    assert "stays so" in here.refused(1, "approvals", "reject", found["id"], "--yes")


def test_a_decision_is_asked_for_again_and_a_no_changes_nothing(
    here: Program, simulator: Simulator
) -> None:
    found = asked(here, "cli-2")
    for answer, told in (("n\n", "nothing was decided"), ("", "add --yes")):
        outcome = here.run("approvals", "approve", found["id"], text=answer)
        assert outcome.code == 1
        assert '"order_id": "cli-2"' in outcome.out
        assert "approve exactly this?" in outcome.err
        assert told in outcome.err
    assert here.good("approvals", "show", found["id"], "--json").json == found
    line = here.refused(2, "approvals", "approve", found["id"], "--json")
    assert "add --yes" in line
    line = here.refused(1, "approvals", "approve", found["id"], "--yes", "--digest", "0" * 64)
    assert "another proposal" in line
    here.good("approvals", "reject", found["id"], "--note", "not now", text="y\n")
    with here.started("worker"):
        here.wait_for_event(found["run_id"], "run.failed")
    run = here.good("runs", "show", found["run_id"], "--json").json
    assert run["error"]["code"] == "approval_rejected"


def test_an_approval_that_is_not_there_is_told_in_one_line(here: Program) -> None:
    for command in ("show", "approve", "reject"):
        more = () if command == "show" else ("--yes",)
        line = here.refused(1, "approvals", command, "apr_01m8pfskc6e458xvnxgwdfa6sq", *more)
        assert "no such approval" in line

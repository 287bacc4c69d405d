"""Who may do what: every route of the contract × everybody (P12).

The routes come from the OpenAPI document: one that is added without a rule here fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from earnest.doors.api.parameters import SubmitBody
from tests.doors.api.conftest import PEOPLE
from tests.doors.api.outside import Outside

ORDER = {"order_id": "17", "amount": "20.00"}
UNKNOWN_RUN = "run_01m8pfskc6e458xvnxgwdfa6sq"
UNKNOWN_OPERATION = "op_01m8pfskc6e458xvnxgwdfa6sq"
NOBODY = (None, "revoked", "expired", "malformed")
PUBLIC = {"/livez", "/readyz", "/openapi.json", "/docs"}

Rule = dict[str, int]
"""Statuses by person; who is not named gets what `*` says."""

LISTS_OWN: Rule = {
    "member": 200,
    "member2": 200,
    "operator": 200,
    "other member": 200,
    "other operator": 200,
    "*": 403,
}
MAKES: Rule = {person: 202 if status == 200 else status for person, status in LISTS_OWN.items()}
LISTS_SCOPE: Rule = {"operator": 200, "other operator": 200, "*": 403}
SEES: Rule = {"member": 200, "operator": 200, "*": 404}
CANCELS: Rule = SEES
SENDS: Rule = {"member": 202, "operator": 202, "*": 404}
RETRIES: Rule = {"member": 409, "operator": 409, "*": 404}
"""The run is in doubt: whoever may retry it hears that it must be settled first."""

RESOLVES: Rule = {"operator": 200, "member": 403, "*": 404}
ASKS: Rule = {"operator": 409, "member": 403, "*": 404}
"""The provider cannot be asked: whoever may ask hears so."""

RULES: dict[tuple[str, str], Rule] = {
    ("POST", "/v1/runs"): MAKES,
    ("GET", "/v1/runs"): LISTS_OWN,
    ("GET", "/v1/runs/{run_id}"): SEES,
    ("GET", "/v1/runs/{run_id}/explain"): SEES,
    ("GET", "/v1/runs/{run_id}/events"): SEES,
    ("GET", "/v1/runs/{run_id}/text-events"): SEES,
    ("GET", "/v1/runs/{run_id}/text-deltas"): SEES,
    ("GET", "/v1/runs/{run_id}/attempts"): SEES,
    ("GET", "/v1/runs/{run_id}/steps"): SEES,
    ("GET", "/v1/runs/{run_id}/operations"): SEES,
    ("POST", "/v1/runs/{run_id}/cancel"): CANCELS,
    ("POST", "/v1/runs/{run_id}/retry"): RETRIES,
    ("POST", "/v1/runs/{run_id}/signals/{name}"): SENDS,
    ("GET", "/v1/events"): LISTS_OWN,
    ("GET", "/v1/operations"): LISTS_SCOPE,
    ("GET", "/v1/operations/{operation_id}"): SEES,
    ("POST", "/v1/operations/{operation_id}/resolution"): RESOLVES,
    ("POST", "/v1/operations/{operation_id}/lookup"): ASKS,
}

BODIES: dict[str, dict[str, Any]] = {
    "/v1/runs": {"kind": "shop.echo", "input": 1},
    "/v1/runs/{run_id}/signals/{name}": {"payload": 1},
    "/v1/operations/{operation_id}/resolution": {"outcome": "released", "evidence": "a letter"},
}


@dataclass
class Work:
    """A run of `member` whose only operation is in doubt."""

    outside: Outside
    run_id: str
    operation_id: str

    async def ask(
        self, route: tuple[str, str], who: str | None, *, run_id: str = "", operation_id: str = ""
    ) -> httpx2.Response:
        method, template = route
        path = template.format(
            run_id=run_id or self.run_id,
            operation_id=operation_id or self.operation_id,
            name="go",
        )
        headers = {"If-Match": '"3"'}
        if template == "/v1/runs":
            headers["Idempotency-Key"] = f"key of {who}"
        return await self.outside.call(
            method, path, who, json=BODIES.get(template), headers=headers
        )


@pytest.fixture
async def work(outside: Outside) -> Work:
    run = await outside.submit("shop.refund", ORDER)
    await outside.drain()
    (operation,) = (await outside.get(f"/v1/runs/{run['id']}/operations")).json()["items"]
    return Work(outside, run["id"], operation["id"])


def _expected(rule: Rule, person: str) -> int:
    return rule.get(person, rule["*"])


def test_every_route_has_a_rule(outside: Outside) -> None:
    paths = outside.app.openapi()["paths"]
    routes = {(method.upper(), path) for path in paths for method in paths[path]}
    assert {route for route in routes if route[1] not in PUBLIC} == set(RULES)


def test_the_document_names_the_roles_that_open_each_route(outside: Outside) -> None:
    """What the document says and what the rules say are the same."""
    paths = outside.app.openapi()["paths"]
    for (method, path), rule in RULES.items():
        security = paths[path][method.lower()]["security"]
        opened_by = {role for one in security for role in one["token"]}
        assert opened_by == {
            role
            for person, (scope, _, roles) in PEOPLE.items()
            for role in roles
            if scope == "demo" and _expected(rule, person) not in (403, 404)
        }, (method, path)


async def test_nothing_opens_without_a_valid_token(work: Work) -> None:
    for route in RULES:
        for nobody in NOBODY:
            answer = await work.ask(route, nobody)
            told = (answer.status_code, answer.json()["code"])
            assert told == (401, "unauthenticated"), (route, nobody)


@pytest.mark.parametrize("route", RULES, ids=" ".join)
async def test_each_route_opens_to_whom_its_rule_says(work: Work, route: tuple[str, str]) -> None:
    """P12: and no answer to the others holds anything of what they may not see."""
    rule = RULES[route]
    # Those who change something come last.
    for person in sorted(PEOPLE, key=lambda person: (_expected(rule, person) < 300, person)):
        answer = await work.ask(route, person)
        assert answer.status_code == _expected(rule, person), (person, answer.text)
        if person not in ("member", "operator"):
            shown = answer.json()
            shown.pop("instance", None)
            assert work.run_id not in str(shown)
            assert work.operation_id not in str(shown)


ITEM_ROUTES = [route for route in RULES if "{" in route[1]]


async def test_foreign_malformed_and_unknown_ids_look_the_same(work: Work) -> None:
    """P12: nobody can tell from an answer whether something exists elsewhere."""
    nowhere = [
        (UNKNOWN_RUN, UNKNOWN_OPERATION),
        (work.operation_id, work.run_id),
        ("x", "x"),
        ("run_", "op_"),
        ("%00", "%00"),
        ("run_" + "9" * 26, "op_" + "9" * 26),
        ("RUN_" + work.run_id[4:], "OP_" + work.operation_id[3:]),
        ("x" * 3000, "x" * 3000),
    ]
    foreign = [(work.run_id, work.operation_id)]
    told = []
    for route in ITEM_ROUTES:
        for who in ("member2", "other operator", "approver", "operator"):
            for run_id, operation_id in nowhere + (foreign if who != "operator" else []):
                answer = await work.ask(route, who, run_id=run_id, operation_id=operation_id)
                assert answer.status_code == 404
                told.append(_but_for_this_request(answer))
    assert all(one == told[0] for one in told)


def _but_for_this_request(answer: httpx2.Response) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers without what names the request itself."""
    body = {**answer.json(), "instance": "", "request_id": ""}
    return body, {**answer.headers, "x-request-id": "", "content-length": ""}


async def test_what_is_not_there_is_said_before_what_is_wrong_with_the_request(work: Work) -> None:
    """P12: a missing If-Match tells nobody that a foreign operation is in doubt."""
    path = f"/v1/operations/{work.operation_id}/resolution"
    body = BODIES["/v1/operations/{operation_id}/resolution"]
    for who in ("member2", "other operator"):
        assert (await work.outside.post(path, who, json=body)).status_code == 404


async def test_lists_hold_only_what_the_caller_may_see(work: Work) -> None:
    """P12."""
    mine = await work.outside.submit("shop.echo", 1, "member2")
    theirs = await work.outside.submit("shop.echo", 1, "other member")
    expected = {
        "member": {work.run_id},
        "member2": {mine["id"]},
        "operator": {work.run_id, mine["id"]},
        "other member": {theirs["id"]},
        "other operator": {theirs["id"]},
    }
    for who, ids in expected.items():
        items = (await work.outside.get("/v1/runs", who)).json()["items"]
        assert {item["id"] for item in items} == ids, who
    desk = await work.outside.get("/v1/operations", "other operator")
    assert desk.json()["items"] == []


async def test_the_same_principal_name_in_two_scopes_is_two_people(work: Work) -> None:
    """P12: `other member` is called `ann` too."""
    assert PEOPLE["member"][1] == PEOPLE["other member"][1]
    assert (await work.outside.get(f"/v1/runs/{work.run_id}", "other member")).status_code == 404


async def test_a_refused_call_changes_nothing(work: Work) -> None:
    """P12: what everybody else tried left no trace on the run."""
    before = (await work.outside.get(f"/v1/runs/{work.run_id}")).json()
    for route in ITEM_ROUTES:
        for person in set(PEOPLE) - {"member", "operator"}:
            await work.ask(route, person)
    assert (await work.outside.get(f"/v1/runs/{work.run_id}")).json() == before


async def test_a_parent_in_another_scope_cannot_be_named(work: Work) -> None:
    """P12: there is no way to refer to anything by a body."""
    assert not {"parent_run_id", "scope_id", "principal_id"} & set(SubmitBody.model_fields)

"""The authorisation matrix: every route of the contract × everybody, by the rules of the routes.

`cases` reads the routes from the OpenAPI document; `judge` asks one of them as everybody and tells
where an answer is not what its rule says, or holds what the asker may not see.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import httpx2
from fastapi import FastAPI
from fastapi.routing import APIRoute

from earnest.doors.api.routes import JsonRoute
from earnest.doors.api.rules import Rule
from earnest.engine.process.actors import Role
from tests.doors.api.conftest import PEOPLE
from tests.doors.api.outside import Outside
from tests.doors.api.samples import (
    MAKERS,
    MAKES,
    NAMES,
    OPENED_BY,
    OPENS_WITH,
    SEEN_BY,
    Route,
    request_of,
)

NOBODY = (None, "revoked", "expired", "malformed", "disabled")
OWNER = "member"


@dataclass
class Case:
    """One route with its rule, and the parameters of its path."""

    route: Route
    rule: Rule
    parameters: list[str]

    def __str__(self) -> str:
        return " ".join(self.route)


def cases(app: FastAPI) -> list[Case]:
    """Every route of the OpenAPI document. Raises `AssertionError` for one without a rule."""
    ruled = _rules(app)
    found = []
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            rule = ruled.get((method.upper(), path))
            assert rule is not None, f"{method} {path} has no rule"
            found.append(Case((method.upper(), path), rule, re.findall(r"{(\w+)}", path)))
    return found


def require_samples(found: list[Case]) -> None:
    """Raises `AssertionError` for a route about something of which there is no sample."""
    for case in found:
        unknown = sorted(set(case.parameters) - set(MAKERS) - set(NAMES))
        assert not unknown, f"{case}: add a sample of {unknown}"


def _rules(app: FastAPI) -> dict[Route, Rule | None]:
    return {
        (method, route.path): route.rule if isinstance(route, JsonRoute) else None
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def expected(case: Case, who: str | None) -> int:
    """The status by the rule; 200 for all that opens."""
    if who in NOBODY:
        return 401
    assert who is not None
    scope, _, given = PEOPLE[who]
    roles, rule = {Role(role) for role in given}, case.rule
    stranger = rule.of_first_scope and scope != "demo"
    opens = bool(roles & set(rule.roles) & OPENED_BY.get(case.route, set(Role))) and not stranger
    eyes = roles & set(rule.seen_by)
    for parameter in case.parameters:
        eyes &= SEEN_BY.get(parameter, set(Role))
    if case.route in MAKES and opens and scope != "demo":
        return MAKES[case.route]
    if rule.hides and (scope != "demo" or stranger or not _sees(who, eyes)):
        return 404
    return 200 if opens else 403


def _sees(who: str, roles: set[Role]) -> bool:
    """A member its own, everybody else what their role is shown."""
    return bool(roles - {Role.MEMBER}) or (Role.MEMBER in roles and who == OWNER)


async def make(outside: Outside, case: Case) -> dict[str, str]:
    """New things for the route's parameters."""
    made = {name: await MAKERS[name](outside) for name in case.parameters if name in MAKERS}
    return made | {name: NAMES[name] for name in case.parameters if name in NAMES}


async def ask(
    outside: Outside, case: Case, who: str | None, parameters: dict[str, str]
) -> httpx2.Response:
    method, template = case.route
    path = template.format(**parameters)
    request = await request_of(outside, case.route, who, parameters)
    return await outside.call(method, path, who, **request)


async def judge(outside: Outside, case: Case) -> list[str]:
    """What is wrong: a status that is not the rule's, or a refusal that tells what it hides. Who is
    refused is asked first, about a thing that is there; who is let in, about one of their own."""
    wrong = []
    everybody = [*NOBODY, *PEOPLE]
    parameters = await make(outside, case)
    for who in sorted(everybody, key=lambda who: (expected(case, who) == 200, str(who))):
        due = expected(case, who)
        if due == 200:
            parameters = await make(outside, case)
        answer = await ask(outside, case, who, parameters)
        if not _fits(case, due, answer.status_code):
            wrong.append(f"{who} got {answer.status_code} at {case}, not {due}: {answer.text}")
        if due != 200 and _tells(answer, parameters):
            wrong.append(f"{who} was told at {case} what it may not see: {answer.text}")
    return wrong


def _fits(case: Case, due: int, status: int) -> bool:
    if due != 200:
        return status == due
    return status == OPENS_WITH[case.route] if case.route in OPENS_WITH else status < 300


def _tells(answer: httpx2.Response, parameters: dict[str, str]) -> bool:
    """Whether a refusal names the thing, other than as the path that was asked."""
    if not answer.content:
        return False
    shown: dict[str, Any] = answer.json()
    shown.pop("instance", None)
    ids = [value for name, value in parameters.items() if name in MAKERS and value != "demo"]
    return any(value in str(shown) for value in ids)

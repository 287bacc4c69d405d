"""Who may do what: every route of the contract × everybody (P12).

Generated: the routes come from the OpenAPI document, what is expected from the rule that stands
beside each of them, what is asked for from `samples`. One that is added without a rule fails here,
and stops the application from starting.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from earnest.domain.errors import SettingInvalid
from earnest.doors.api.application import build_api
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.parameters import SubmitBody
from earnest.doors.api.routes import MINE_OR_SCOPES, Answer, Routes, require_rules
from earnest.doors.api.visit import Visiting
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process.engine import Engine
from earnest.store.blobs_folder import FolderBlobs
from earnest.store.database import Database
from tests.doors.api.conftest import PEOPLE
from tests.doors.api.matrix import NOBODY, Case, ask, cases, expected, judge, make, require_samples
from tests.doors.api.outside import Outside
from tests.doors.api.samples import MAKERS, MAKES, NAMES, NOWHERE, a_run_in_doubt

TABLE = Path(__file__).parents[3] / "docs" / "who-may-do-what.md"


@cache
def every_case() -> list[Case]:
    """What the contract holds; it takes no database to say."""
    engine = Engine(Database("postgresql://nowhere"))
    return cases(build_api(engine, ready=lambda: Readiness(True)))


PRIVATE = [case for case in every_case() if case.rule.roles]
OPEN = [case for case in every_case() if not case.rule.roles]
ITEMS = [case for case in PRIVATE if case.rule.hides and case.route not in MAKES]


@pytest.fixture(autouse=True)
def _place(engine: Engine, tmp_path: Path) -> None:
    engine.blobs = FolderBlobs(tmp_path / "artifacts")


@pytest.mark.parametrize("case", PRIVATE, ids=str)
async def test_each_route_opens_to_whom_its_rule_says(outside: Outside, case: Case) -> None:
    """P12: and no refusal holds anything of what its asker may not see."""
    assert await judge(outside, case) == []


@pytest.mark.parametrize("case", OPEN, ids=str)
async def test_what_asks_for_no_token_answers_everybody_the_same(
    outside: Outside, case: Case
) -> None:
    parameters = await make(outside, case)
    told = {(await ask(outside, case, who, parameters)).status_code for who in (*NOBODY, *PEOPLE)}
    assert len(told) == 1


def test_every_private_route_is_asked_as_everybody() -> None:
    roles = {role for _, _, given in PEOPLE.values() for role in given}
    require_samples(every_case())
    assert roles == {"member", "approver", "operator", "admin"}
    assert {scope for scope, _, _ in PEOPLE.values()} == {"demo", "other"}
    for case in PRIVATE:
        assert case.route[1].startswith(("/v1/", "/api/"))
        told = {expected(case, who) for who in (*NOBODY, *PEOPLE)}
        assert {200, 401} < told, f"{case} is opened to nobody, or refused to nobody"


def test_the_document_names_the_roles_of_the_rule(outside: Outside) -> None:
    paths = outside.app.openapi()["paths"]
    for case in PRIVATE:
        security = paths[case.route[1]][case.route[0].lower()]["security"]
        assert [one["token"] for one in security] == [[role.value] for role in case.rule.roles]


@pytest.mark.parametrize("case", ITEMS, ids=str)
async def test_foreign_malformed_and_unknown_ids_look_the_same(
    outside: Outside, case: Case
) -> None:
    """P12: nobody can tell from an answer whether something exists elsewhere."""
    theirs = await make(outside, case)
    told = []
    for who in PEOPLE:
        if expected(case, who) == 404:
            told.append(await _told(outside, case, who, theirs))
        told += [await _told(outside, case, who, parameters) for parameters in _nowhere(theirs)]
    assert all(one == told[0] for one in told), told
    if told[0][0] is not None:
        assert told[0][0]["code"] == "not_found"


def _nowhere(parameters: dict[str, str]) -> list[dict[str, str]]:
    """What is no id, and ids of nothing."""
    found = []
    for name, prefix in NOWHERE.items():
        if name in parameters:
            unknown = f"{prefix}_01m8pfskc6e458xvnxgwdfa6sq"
            malformed = ["x", f"{prefix}_", "%00", f"{prefix}_" + "9" * 26, "x" * 3000]
            shouted = prefix.upper() + parameters[name][len(prefix) :]
            other = "op_" + parameters[name].partition("_")[2] if prefix != "op" else "run_x"
            found += [{**parameters, name: one} for one in (unknown, shouted, other, *malformed)]
    return found


async def _told(
    outside: Outside, case: Case, who: str, parameters: dict[str, str]
) -> tuple[dict[str, Any] | None, dict[str, str], int]:
    """Body, headers and status without what names the request itself."""
    answer: httpx2.Response = await ask(outside, case, who, parameters)
    assert answer.status_code == 404, (who, parameters, answer.text)
    body = {**answer.json(), "instance": "", "request_id": ""} if answer.content else None
    headers = {**answer.headers, "x-request-id": "", "content-length": ""}
    return body, headers, answer.status_code


async def test_what_is_not_there_is_said_before_what_is_wrong_with_the_request(
    outside: Outside,
) -> None:
    """P12: a missing If-Match tells nobody that a foreign operation is in doubt."""
    operation_id = await MAKERS["operation_id"](outside)
    path = f"/v1/operations/{operation_id}/resolution"
    body = {"outcome": "released", "evidence": "a letter"}
    for who in ("member2", "other operator"):
        assert (await outside.post(path, who, json=body)).status_code == 404


async def test_lists_hold_only_what_the_caller_may_see(outside: Outside) -> None:
    """P12."""
    first = await a_run_in_doubt(outside)
    mine = await outside.submit("shop.echo", 1, "member2")
    theirs = await outside.submit("shop.echo", 1, "other member")
    seen = {
        "member": {first},
        "member2": {mine["id"]},
        "operator": {first, mine["id"]},
        "other member": {theirs["id"]},
        "other operator": {theirs["id"]},
    }
    for who, ids in seen.items():
        items = (await outside.get("/v1/runs", who)).json()["items"]
        assert {item["id"] for item in items} == ids, who
    desk = await outside.get("/v1/operations", "other operator")
    assert desk.json()["items"] == []


async def test_the_admins_lists_end_at_the_wall(outside: Outside) -> None:
    """P12: principals, tokens and the audit are those of the admin's own scope."""
    for path in ("/v1/principals", "/v1/tokens", "/v1/audit"):
        here = (await outside.get(path, "admin", params={"limit": 100})).json()["items"]
        there = (await outside.get(path, "other admin", params={"limit": 100})).json()["items"]
        assert here
        assert there
        assert "dan" in str(here)
        assert "dan" not in str(there)
        assert "hal" not in str(here)


async def test_the_same_principal_name_in_two_scopes_is_two_people(outside: Outside) -> None:
    """P12: `other member` is called `ann` too."""
    assert PEOPLE["member"][1] == PEOPLE["other member"][1]
    run_id = await a_run_in_doubt(outside)
    assert (await outside.get(f"/v1/runs/{run_id}", "other member")).status_code == 404


async def test_a_refused_call_changes_nothing(outside: Outside, engine: Engine) -> None:
    """P12: what everybody else tried left no trace anywhere."""
    made = {name: await maker(outside) for name, maker in MAKERS.items()} | NAMES
    before = await _everything(engine)
    for case in PRIVATE:
        for who in PEOPLE:
            if expected(case, who) in (403, 404, 412):
                await ask(outside, case, who, made)
    assert await _everything(engine) == before


async def _everything(engine: Engine) -> dict[str, list[str]]:
    """All rows of all tables, but for the day on which a token was last used."""
    async with engine.database.connection() as tx:
        tables = await tx.fetch(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname <> 'setting' "
            "AND relnamespace = 'earnest'::regnamespace"
        )
        return {
            name: sorted(
                row[0]
                for row in await tx.fetch(
                    f"SELECT (to_jsonb(t) - 'used_on')::text FROM {name} AS t"
                )
            )
            for (name,) in tables
        }


async def test_a_parent_in_another_scope_cannot_be_named(outside: Outside) -> None:
    """P12: there is no way to refer to anything by a body."""
    assert not {"parent_run_id", "scope_id", "principal_id"} & set(SubmitBody.model_fields)


# ---- would it be noticed? ----------------------------------------------------------------------


def test_an_application_with_a_route_without_a_rule_does_not_start(outside: Outside) -> None:
    @outside.app.get("/v1/everything")
    async def show_everything() -> dict[str, str]:
        return {}

    with pytest.raises(SettingInvalid, match=r"who may come to .*/v1/everything"):
        require_rules(outside.app)


def test_a_route_that_the_document_shows_and_no_rule_covers_fails_the_matrix(
    outside: Outside,
) -> None:
    _declared("/v1/things").add_to(outside.app)
    outside.app.openapi_schema = None
    outside.app.routes[-1].rule = None  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="/v1/things has no rule"):
        cases(outside.app)


def test_a_route_about_something_of_which_there_is_no_sample_fails_the_matrix(
    outside: Outside,
) -> None:
    _declared("/v1/things/{thing_id}").add_to(outside.app)
    outside.app.openapi_schema = None
    with pytest.raises(AssertionError, match="add a sample of"):
        require_samples(cases(outside.app))


async def test_a_handler_that_does_not_ask_the_database_as_the_caller_is_found(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule is right and its query is not: foreign members and other scopes would see it."""
    _declared("/v1/things/{run_id}").add_to(outside.app)
    outside.app.openapi_schema = None
    monkeypatch.setattr("tests.doors.api.outside._CONTRACT", [])
    (case,) = [one for one in cases(outside.app) if "things" in one.route[1]]
    wrong = await judge(outside, case)
    assert len(wrong) >= 4
    assert {"member2", "other member", "other operator"} <= {one.split(" got")[0] for one in wrong}


def _declared(path: str) -> Routes:
    """A route that shows what its path names to whoever its rule lets pass."""
    routes = Routes("things")

    async def show_thing(visit: Visiting, run_id: str = "") -> Response:
        """Show a thing."""
        return json_answer({"shown": run_id})

    routes.get(path, Answer(dict[str, Any]), roles=MINE_OR_SCOPES)(show_thing)
    return routes


# ---- the table -----------------------------------------------------------------------------------


def test_the_table_in_the_docs_is_what_the_rules_say() -> None:
    """A changed rule shows as a changed line there. To write it anew, see its last line."""
    assert TABLE.read_text("utf-8") == table_of(every_case())


ABOUT = (
    "Made from the rules that stand with the routes (`doors/api/rules.py`) by "
    "`python -m tests.doors.api.test_authorisation`. Roles do not include each other. A member "
    "does and sees its own, an approver what is addressed to it, an operator and an admin what is "
    "their scope's. To whoever does not see a thing there is no such thing (404); who sees it and "
    "lacks the role hears so (403)."
)


def table_of(found: list[Case]) -> str:
    lines = [
        "# Who may do what",
        "",
        ABOUT,
        "",
        "| call | opened by | seen by | only the first scope's |",
        "| --- | --- | --- | --- |",
    ]
    for case in sorted(found, key=lambda one: (one.route[1], one.route[0])):
        rule = case.rule
        opened = ", ".join(rule.roles) or "everybody"
        seen = ", ".join(rule.seen_by) if rule.hides else ""
        first = "yes" if rule.of_first_scope else ""
        lines.append(f"| `{case}` | {opened} | {seen} | {first} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    TABLE.write_text(table_of(every_case()), "utf-8")

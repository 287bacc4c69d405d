"""Scopes, principals, tokens and the audit at the command line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.cli.program import Program


@pytest.fixture(autouse=True)
def _eve(here: Program) -> None:
    """The scope `demo` has an admin."""
    here.good("tokens", "issue", "eve", "--role", "admin", "--scope", "demo", "--new-scope")


def items(here: Program, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = here.good(*words, "--json").json["items"]
    return found


def test_a_token_is_issued_listed_rotated_and_revoked(here: Program) -> None:
    issued = here.good(
        "tokens", "issue", "ann", "--role", "member", "--name", "laptop", "--days", "1", "--json"
    ).json
    assert issued["token"].startswith("ern_")
    assert (issued["scope"], issued["principal"], issued["name"]) == ("demo", "ann", "laptop")
    (listed,) = items(here, "tokens", "list", "--principal", "ann")
    assert listed["id"] == issued["id"]
    assert issued["token"] not in str(listed)
    fresh = here.good("tokens", "rotate", issued["token"], "--overlap", "0", "--json").json
    assert (fresh["replaces"], fresh["name"]) == (issued["id"], "laptop")
    assert [one["id"] for one in items(here, "tokens", "list", "--principal", "ann", "--live")] == [
        fresh["id"]
    ]
    assert here.refused(1, "tokens", "rotate", issued["id"]).startswith(
        "this token was rotated already; its successor is"
    )
    for _ in range(2):
        here.good("tokens", "revoke", fresh["id"])
    assert items(here, "tokens", "list", "--principal", "ann", "--live") == []
    assert "laptop" in here.good("tokens", "list").out


def test_a_token_of_nobody_is_refused_with_what_to_do(here: Program) -> None:
    assert "no principal 'bob'" in here.refused(1, "tokens", "issue", "bob")
    assert here.refused(1, "tokens", "revoke", "0" * 16) == "there is no such token"
    assert "between 0 and 7 days" in here.refused(
        1, "tokens", "rotate", "0" * 16, "--overlap", "99999999"
    )


def test_a_principal_gets_roles_and_is_disabled(here: Program) -> None:
    made = here.good(
        "principals", "set", "dan", "--role", "operator", "--role", "approver", "--json"
    ).json
    assert (made["roles"], made["version"]) == (["approver", "operator"], 1)
    here.good("principals", "set", "dan", "--role", "operator")
    assert "in version 2 now" in here.refused(
        1, "principals", "set", "dan", "--disable", "--if-version", "1"
    )
    here.good("principals", "set", "dan", "--disable")
    (dan,) = [one for one in items(here, "principals", "list") if one["id"] == "dan"]
    assert (dan["roles"], dan["disabled"], dan["version"]) == ([], True, 3)
    assert "say which roles it shall have" in here.refused(2, "principals", "set", "dan")


def test_the_last_admin_stays_one(here: Program) -> None:
    assert here.refused(1, "principals", "set", "eve", "--role", "member") == (
        "eve is the last admin of scope demo: make another one first"
    )
    here.good("principals", "set", "pam", "--role", "admin")
    here.good("principals", "set", "eve", "--role", "member")


def test_a_scope_is_made_with_its_first_admin(here: Program) -> None:
    token = here.good("scopes", "create", "acme", "--admin", "zoe").out.strip()
    assert token.startswith("ern_")
    assert [one["id"] for one in items(here, "scopes", "list")] == ["acme", "demo"]
    (zoe,) = items(here, "principals", "list", "--scope", "acme")
    assert (zoe["id"], zoe["roles"]) == ("zoe", ["admin"])
    assert here.refused(1, "scopes", "create", "acme") == "there is a scope 'acme' already"
    assert "no name for a scope" in here.refused(1, "scopes", "create", "No Name")


def test_the_audit_says_who_did_what_at_the_command_line(here: Program) -> None:
    run = here.good("runs", "submit", "demo.echo", '{"message": "x"}', "--json").json["id"]
    here.good("runs", "cancel", run)
    (entry,) = items(here, "audit", "list", "--action", "run.cancelled")
    assert entry["subject"] == run
    assert entry["principal_id"].startswith("cli:")
    assert entry["token_id"] is None
    assert items(here, "audit", "list", "--subject", "principal eve")[0]["detail"] == {
        "roles": ["admin"],
        "were": None,
    }
    assert items(here, "audit", "list", "--until", "2001-01-01T00:00:00Z") == []
    assert "run.cancelled" in here.good("audit", "list").out
    assert "a time with its zone" in here.refused(2, "audit", "list", "--since", "yesterday")

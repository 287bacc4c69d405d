"""The bodies of answers about who may come in, and about the audit. None holds a secret but the one
that brings a new token."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, NotRequired

from typing_extensions import TypedDict

from earnest.engine.process.actors import Role


class Scope(TypedDict):
    id: str
    created_by: str
    created_at: datetime


class MadeScope(Scope):
    """`token` is its first admin's: there once, in the answer that made it."""

    token: NotRequired[str]


class ScopePage(TypedDict):
    items: list[Scope]
    next_cursor: str | None


class Principal(TypedDict):
    """One that is disabled has no roles, and its tokens open nothing."""

    id: str
    roles: list[Role]
    disabled: bool
    disabled_at: datetime | None
    version: int
    created_at: datetime


class PrincipalPage(TypedDict):
    items: list[Principal]
    next_cursor: str | None


class Token(TypedDict):
    """`roles` are its principal's, now. `used_on` is the last day on which it opened a door;
    `replaces` the token of which it is the successor."""

    id: str
    principal_id: str
    roles: list[Role]
    name: str | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_on: date | None
    replaces: str | None


class IssuedToken(Token):
    """`token` is its text: there once, in the answer that made it, and in no repeated one."""

    token: NotRequired[str]


class TokenPage(TypedDict):
    items: list[Token]
    next_cursor: str | None


class AuditEntry(TypedDict):
    """Who did what to what. `token_id` and `request_id` are null where it came through no door of
    this API."""

    id: str
    principal_id: str
    token_id: str | None
    action: str
    subject: str
    detail: dict[str, Any]
    request_id: str | None
    created_at: datetime


class AuditPage(TypedDict):
    items: list[AuditEntry]
    next_cursor: str | None

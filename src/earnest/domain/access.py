"""Who may come in, as values: scopes, principals and tokens. No value holds a token's secret."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from msgspec import Struct

from earnest.domain.errors import IdempotencyConflict


class Scope(Struct, frozen=True):
    scope_id: str
    created_by: str
    created_at: datetime


class Principal(Struct, frozen=True):
    """`roles` are those of its scope; one that is disabled has none."""

    principal_id: str
    roles: list[str]
    version: int
    created_at: datetime
    disabled_at: datetime | None


class Token(Struct, frozen=True):
    """`roles` are its principal's, now. `used_on` is the last day on which it opened a door,
    `replaces` the token of which it is the successor."""

    token_id: str
    principal_id: str
    roles: list[str]
    name: str | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_on: date | None
    replaces: str | None


class RequestKey(Struct, frozen=True):
    """An idempotency key, with the digest of what was asked under it."""

    key: str
    fingerprint: bytes

    def require_same(self, stored: bytes) -> None:
        """Raises `IdempotencyConflict` if the key was used for something else."""
        if stored != self.fingerprint:
            raise IdempotencyConflict("this key was used for another request")


class NewToken(Struct, frozen=True):
    """A token about to be made: for how long, or until when it is good (neither: until it is
    revoked)."""

    principal_id: str
    name: str | None = None
    good_for: timedelta | None = None
    expires_at: datetime | None = None
    replaces: str | None = None

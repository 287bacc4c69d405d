"""Who acts: a principal of one scope with the roles that it has there.

Roles do not include each other. A member sees and does its own runs, an operator the scope's, an
approver what is addressed to it, an admin who may come in. What is shared by all scopes (lanes,
pools, nodes, the scopes themselves) is ruled by those of the first scope alone: the one that was
made before all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from earnest.domain.errors import Forbidden, NotFound


class Role(StrEnum):
    MEMBER = "member"
    APPROVER = "approver"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks: a principal of one scope, with the roles it has there. By which token and with
    which request it came is told to the audit, and makes no other actor of it."""

    scope_id: str
    principal_id: str
    roles: frozenset[str]
    of_first_scope: bool = field(default=False, compare=False)
    token_id: str | None = field(default=None, compare=False)
    request_id: str | None = field(default=None, compare=False)
    is_local: bool = field(default=False, compare=False)

    def require(self, *roles: Role) -> None:
        """Raises `Forbidden` unless the actor has one of the roles."""
        if self.roles.isdisjoint(roles):
            raise Forbidden(f"this needs the role {' or '.join(roles)}")

    def require_first_scope(self) -> None:
        """Raises `Forbidden` for actors of any scope but the first one."""
        if not self.of_first_scope:
            raise Forbidden("all scopes share this; the first scope's admins alone rule it")

    def sees_only(self) -> str | None:
        """Whose work it sees: its own id, or `None` for the whole scope's. Raises `NotFound` when
        it sees nobody's: to such an actor no run exists."""
        if Role.OPERATOR in self.roles:
            return None
        if Role.MEMBER in self.roles:
            return self.principal_id
        raise NotFound("an actor that is neither member nor operator sees no runs")


By = Actor | str
"""Who does something: an actor, or the bare name of who opened the database itself."""


def local(scope_id: str, name: str = "local") -> Actor:
    """Whoever opened the database itself, such as a command or a program: there is nothing that it
    may not do there."""
    return Actor(scope_id, name, frozenset(Role), of_first_scope=True, is_local=True)


def acting(scope_id: str, by: By) -> Actor:
    """Who `by` is, in that scope."""
    return by if isinstance(by, Actor) else local(scope_id, by)


def name_of(by: By) -> str:
    """The name that is kept with what somebody did."""
    return by.principal_id if isinstance(by, Actor) else by

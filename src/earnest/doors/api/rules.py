"""Who may come to which route: one rule each, declared with the route itself.

The whole table, made from these declarations, is `docs/who-may-do-what.md`. An application with a
route that has no rule does not start, and the tests try every route as everybody against its rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from earnest.domain.errors import Forbidden, NotFound
from earnest.engine.process.actors import Actor, Role


@dataclass(frozen=True, slots=True)
class Rule:
    """`roles` open the route. Where its path names one thing (`hides`), to whoever is not in
    `seen_by` there is no such thing; who sees it and lacks the role hears so. `of_first_scope`:
    only to actors of the first scope. The rule narrows who may ask; what they see is decided by the
    query: a member its own, an approver what is addressed to it, the others their scope's."""

    roles: tuple[Role, ...]
    seen_by: tuple[Role, ...]
    of_first_scope: bool = False
    hides: bool = False

    def admit(self, actor: Actor) -> None:
        """Raises `Forbidden`, or `NotFound` where that would tell that something is there."""
        stranger = self.of_first_scope and not actor.of_first_scope
        if self.hides and (stranger or actor.roles.isdisjoint(self.seen_by)):
            raise NotFound("nothing that this actor may see")
        if not self.hides and actor.roles.isdisjoint(self.roles):
            raise Forbidden(f"this needs the role {' or '.join(self.roles)}")
        if stranger:
            actor.require_first_scope()


EVERYBODY = Rule((), ())
"""The rule of what tells no facts: nobody is asked who they are."""

SIGNED = Rule((), (), hides=True)
"""The rule of what providers call: no token opens it, only the signature of what is sent."""

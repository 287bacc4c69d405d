"""Lists by page: a limit, a cursor, and never a count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from earnest.doors.api.cursors import Place
from earnest.doors.api.parameters import PageQuery
from earnest.doors.api.visit import Visit
from earnest.engine.process.actors import Actor, Role

T = TypeVar("T")


class Listing:
    """One list as one visitor asked for it. Its cursors open only this list, with these filters,
    for who sees the same."""

    def __init__(self, visit: Visit, name: str, query: PageQuery, **filters: Any) -> None:
        self._cursors = visit.cursors
        self._query = query
        asked = query.model_dump(mode="json", exclude={"limit", "cursor"}, exclude_none=True)
        self._bound_to = {
            "list": name,
            "scope": visit.actor.scope_id,
            "asked_by": _whose(visit.actor),
            **asked,
            **filters,
        }

    @property
    def rows(self) -> int:
        """How many to read: one more than the page holds tells whether there is a next one."""
        return self._query.limit + 1

    async def place(self) -> Place | None:
        """After what the page begins; `None`: at the start. Raises `InvalidRequest`."""
        if self._query.cursor is None:
            return None
        return await self._cursors.read(self._bound_to, self._query.cursor)

    async def page(
        self, found: Sequence[T], show: Callable[[T], Any], place: Callable[[T], Place]
    ) -> dict[str, Any]:
        """The page's body, out of the rows that were read."""
        items = found[: self._query.limit]
        more = len(found) > len(items)
        cursor = await self._cursors.write(self._bound_to, place(items[-1])) if more else None
        return {"items": [show(item) for item in items], "next_cursor": cursor}


def _whose(actor: Actor) -> str | list[str] | None:
    """Told apart by what they see: a member from the others, who see by their roles."""
    if actor.roles.isdisjoint((Role.MEMBER, Role.OPERATOR)):
        return sorted(actor.roles)
    return actor.sees_only()

"""Named places where a process may be made to die, so that recovery can be shown, not hoped for.

Every promise of the store passes `NAME.before` (nothing of it is committed), and `NAME.after` (it
is committed and nobody has been told). The one call of an operation passes `call.before` and
`call.after`. In production no hook is installed and a point costs a look at an empty list.
"""

from __future__ import annotations

from collections.abc import Callable

PROMISES = (
    "submit claim step emit reserve begin confirm release doubt settle park wake cancel resolve "
    "reap retry renew signal expire look_up"
).split()

POINTS = frozenset(f"{name}.{side}" for name in [*PROMISES, "call"] for side in ("before", "after"))

_hooks: list[Callable[[str], None]] = []


def install(hook: Callable[[str], None] | None) -> None:
    """Calls `hook` with the name of every point that is passed; `None` takes it away."""
    _hooks[:] = [] if hook is None else [hook]


def reach(point: str) -> None:
    for hook in _hooks:
        hook(point)

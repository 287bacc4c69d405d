"""Named places where a process may be made to die, so that recovery can be shown, not hoped for.

Every promise of the store that does something passes `NAME.before` (nothing of it is committed)
and `NAME.after` (it is committed and nobody has been told); one that finds nothing to do passes
none, so that the second passing of a point is the second deed. The one call of an operation passes
`call.before` and `call.after`, a message on its way to a sink `deliver.before` and `deliver.after`.
The app's own record of a receipt passes `record.before` and `record.after`, both inside the
receipt's transaction. In production no hook is installed and a point costs a look at an empty list.
"""

from __future__ import annotations

from collections.abc import Callable

# Of runs and their operations, and of messages from and to the outside.
OF_RUNS = (
    *"submit claim step emit reserve begin confirm release doubt settle park wake cancel".split(),
    *"resolve reap retry renew signal decide expire look_up call record".split(),
)
OF_MESSAGES = ("publish", "take", "deliver", "ack", "receive")

NAMES = (*OF_RUNS, *OF_MESSAGES)
PROMISES = tuple(name for name in NAMES if name not in ("call", "record", "deliver"))
POINTS = frozenset(f"{name}.{side}" for name in NAMES for side in ("before", "after"))

_hooks: list[Callable[[str], None]] = []


def install(hook: Callable[[str], None] | None) -> None:
    """Calls `hook` with the name of every point that is passed; `None` takes it away."""
    _hooks[:] = [] if hook is None else [hook]


def reach(point: str) -> None:
    for hook in _hooks:
        hook(point)


def watched() -> bool:
    """Whether anybody waits for a point to be passed."""
    return bool(_hooks)

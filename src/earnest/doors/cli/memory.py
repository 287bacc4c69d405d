"""The memory of a process that stays: what it has loaded is not walked over again and again."""

from __future__ import annotations

import gc

# Runs that come and go make many short-lived objects; the collector's own 700 would start it for
# every handful of them.
_YOUNG = 10_000


def settle() -> None:
    """Takes what is loaded by now out of the garbage collector's sight. Modules, types and schemas
    stay as long as the process; without this each full collection walks over all of them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)

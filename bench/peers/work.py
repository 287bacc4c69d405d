"""What every peer's script shares: the payload, the clock, and how it tells the comparison.

A script is called as `peer_NAME.py COMMAND [COUNT]`:

    setup           makes tables in the empty database at BENCH_URL
    submit COUNT    submits no-op tasks one by one, and tells the rate
    bulk COUNT      submits no-op tasks by the fastest way that the system has, and tells the rate
    steps COUNT     the same with workflows of five steps
    worker          works until it is killed; tells when the first task begins
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

URL = os.environ["BENCH_URL"]
PAYLOAD = {"pad": "x" * 189}
assert len(json.dumps(PAYLOAD)) == 200

STEPS = 5

_begun = False


def asked() -> tuple[str, int]:
    """The command and its count."""
    return sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0


def setting(name: str, default: str = "") -> str:
    """A setting that the comparison gives a peer, such as its batch size."""
    return os.environ.get(f"BENCH_{name}") or default


def note_start() -> None:
    """Every handler calls it first; the first time is told."""
    global _begun  # noqa: PLW0603 - a handler has nothing else in common with the next
    if not _begun:
        _begun = True
        _tell("first", time.time())


def timed(count: int, work: Callable[[], object]) -> None:
    begun = time.perf_counter()
    work()
    _tell("rate", count / (time.perf_counter() - begun))


async def timed_async(count: int, work: Awaitable[object]) -> None:
    begun = time.perf_counter()
    await work
    _tell("rate", count / (time.perf_counter() - begun))


def _tell(what: str, value: float) -> None:
    sys.stdout.write(f"BENCH {what} {value}\n")
    sys.stdout.flush()

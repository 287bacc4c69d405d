"""Instances: the processes that hold leases, and how others tell that one has ended.

Each instance keeps a session lock on the database for as long as a connection of it lives: that of
a worker's keeper, or that of `known` in a program that only calls.
A lock that stays free for some seconds, on a server that has itself been up for a while, means
that the process is gone or cut off; its runs are taken over without waiting for their leases. That
is safe because of the fences; it is not a proof that it sends nothing any more. The proof, where
one is needed, is of the operating system: same machine, and no such process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import asyncpg

from earnest.domain.errors import EarnestError
from earnest.domain.ids import new_id
from earnest.engine.process.logs import get_logger
from earnest.store.database import LOST, Database, Tx
from earnest.store.statements import sql

log = get_logger("earnest.instances")

_ENTER_AGAIN = 0.5
_FIRST_ENTRY = 10.0
KEPT = timedelta(days=1)
"""How long a process that has ended is remembered at least."""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def this_host() -> str:
    """Names one boot of one machine and its process numbering; empty where it cannot be told."""
    boot = _read("/proc/sys/kernel/random/boot_id")
    try:
        numbering = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
    return f"{boot}/{numbering}" if boot else ""


def process_name(pid: int) -> str:
    """Names a process beyond the reuse of its number: number and start time; empty if there is no
    such process (or only its unreaped remains, which send nothing)."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return ""
    return f"{pid}:{fields[19]}"


@dataclass(frozen=True, slots=True)
class Serves:
    """What a process takes up: runs of these kinds in these lanes, so many at once, and questions
    about operations of these effects."""

    lanes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    slots: int = 0


_NOTHING = Serves()


@dataclass(frozen=True, slots=True)
class Instance:
    """This process as the database knows it."""

    instance_id: uuid.UUID = field(default_factory=new_id)
    host: str = field(default_factory=this_host)
    process: str = field(default_factory=lambda: process_name(os.getpid()))

    @property
    def lock_number(self) -> int:
        digest = hashlib.sha256(b"earnest.instance" + self.instance_id.bytes).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    async def enter(self, tx: Tx, serves: Serves = _NOTHING) -> bool:
        """Registers the instance, tells what it serves, and takes its session lock; again after
        every reconnect. False while an earlier connection of this process, not yet noticed as gone,
        still has it."""
        await tx.execute(
            sql("enter_instance"),
            self.instance_id, self.lock_number, self.host, self.process,
            serves.lanes, serves.kinds, serves.effects, serves.slots,
        )  # fmt: skip
        return bool(await tx.fetchval(sql("hold_instance_lock"), self.lock_number))

    async def leave(self, database: Database) -> None:
        async def work(tx: Tx) -> None:
            await tx.execute(sql("leave_instance"), self.instance_id)

        await database.promise("leave", work, patience=2)


@contextlib.asynccontextmanager
async def known(instance: Instance, database: Database, serves: Serves) -> AsyncIterator[None]:
    """Meanwhile the database knows this process and that it lives, so that a call that it leaves
    behind is doubted at once, by whoever asks for the same, and not when its time is over. For a
    program without a worker, which has no keeper."""
    entered = asyncio.Event()
    staying = asyncio.create_task(_stay(instance, database, serves, entered))
    try:
        with contextlib.suppress(TimeoutError):  # it goes on trying; calls are safe without it
            async with asyncio.timeout(_FIRST_ENTRY):
                await entered.wait()
        yield
    finally:
        staying.cancel()
        await asyncio.gather(staying, return_exceptions=True)
        with contextlib.suppress(EarnestError, *LOST):
            await instance.leave(database)


async def _stay(
    instance: Instance, database: Database, serves: Serves, entered: asyncio.Event
) -> None:
    while True:
        try:
            await _stay_connected(instance, database, serves, entered)
        except (*LOST, asyncpg.PostgresError) as error:
            log.debug("instance.disconnected", error=str(error))
        await asyncio.sleep(_ENTER_AGAIN)


async def _stay_connected(
    instance: Instance, database: Database, serves: Serves, entered: asyncio.Event
) -> None:
    connection = await database.connect(application_name="earnest instance")
    gone = asyncio.Event()
    try:
        connection.add_termination_listener(lambda _: gone.set())
        if await instance.enter(connection, serves):
            entered.set()
            await gone.wait()
    finally:
        connection.terminate()


async def bury(dead: Sequence[uuid.UUID], tx: Tx) -> None:
    """Dead instances that hold nothing any more are not looked at again."""
    await tx.execute(sql("bury_instances"), list(dead))


async def prune(tx: Tx, most: int) -> int:
    """Forgets processes that ended more than `KEPT` ago and that nothing needs any more as its
    holder or as proof; returns how many. One that comes back is entered anew."""
    return len(await tx.fetch(sql("prune_instances"), KEPT, most))


def provably_ended(host: str, process: str) -> bool:
    """Whether the operating system proves that a process has ended. False when it cannot tell."""
    if not host or not process or host != this_host():
        return False
    pid = int(process.partition(":")[0])
    return process_name(pid) != process and _is_not_hidden(pid)


def _is_not_hidden(pid: int) -> bool:
    """Whether what was read of a process is the truth: /proc may hide those of other users."""
    if _read(f"/proc/{pid}/stat"):
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


async def has_ended(tx: Tx, instance_id: uuid.UUID | None) -> bool:
    """Whether the process that an operation was sent from provably runs no more."""
    if instance_id is None:
        return False
    row = await tx.fetchrow(sql("find_instance"), instance_id)
    if row is None:
        return False
    return provably_ended(row["host"], row["process"])


class DeadWatch:
    """Finds instances that are gone: their session lock is free at two looks at least `dead_after`
    apart, on a server that was up the whole time (a restart frees every lock at once)."""

    def __init__(self, dead_after: timedelta) -> None:
        self._dead_after = dead_after.total_seconds()
        self._first_seen: dict[uuid.UUID, float] = {}

    async def dead(self, database: Database, *, at_once: bool = False) -> list[uuid.UUID]:
        """The instances to take over from. `at_once` trusts the first look: for the start of an
        embedded server that nobody else is connected to. A process of this machine that the
        operating system knows to be gone needs no second look either."""
        clock = await database.fetchrow("database_clock")
        rows = await database.fetch("unlocked_instances")
        now = time.monotonic()
        seen = {row["instance_id"]: self._first_seen.get(row["instance_id"], now) for row in rows}
        self._first_seen = seen
        settled = clock is not None and clock["uptime"] > self._dead_after
        return [
            row["instance_id"]
            for row in rows
            if at_once
            or provably_ended(row["host"], row["process"])
            or (settled and now - seen[row["instance_id"]] >= self._dead_after)
        ]

"""Leases: who owns a running run, and for how long.

The protocol. A claim gives a run a new fence (a number that only grows), a new owner token and a
lease. The *database* is authoritative for all three, by its own clock, read under the row's lock.
A worker's *keeper* renews the leases of all its runs in one statement, three times within a lease,
from its own thread and its own connection, so that neither a busy handler nor a busy pool can
starve it.

    claimed ──renewed──▶ claimed ──┬─ settled by the owner
                                   ├─ refused: somebody else owns the run now
                                   └─ run out: the reaper takes it; it is never revived

A worker believes in its own lease only up to a *deadline* on its monotonic clock, counted from
before the renewal was sent; so the worker always stops believing before the database does. Before
it writes a byte of a call it looks at that deadline once more. This narrows the window in which a
process that was frozen sends late; it cannot close it, and nothing relies on it: a call that was
begun is in doubt until a receipt or a proof is stored.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

from earnest.domain.crash_points import reach
from earnest.engine.process.logs import get_logger
from earnest.engine.process.settings import EngineSettings
from earnest.store.database import Database, Tx
from earnest.store.executions import Claimed, Key
from earnest.store.statements import sql

log = get_logger("earnest.leasing")

_RETRY_AFTER = 0.5


def boot_seconds() -> float:
    """Seconds on a clock that also counts while the machine sleeps, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(slots=True, eq=False)
class HeldLease:
    """A lease as its holder sees it. `until` is in boot seconds. `on_lost` and `on_cancel` are
    called from the keeper's thread, each at most once."""

    scope_id: str
    run_id: uuid.UUID
    fence: int
    owner_token: uuid.UUID
    until: float
    on_lost: Callable[[], None]
    on_cancel: Callable[[], None]
    lost: bool = False
    cancel_told: bool = False

    def valid(self) -> bool:
        """Whether the holder may still believe that it owns the run."""
        return not self.lost and boot_seconds() < self.until

    def lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.on_lost()

    def tell_cancel(self) -> None:
        if not self.cancel_told:
            self.cancel_told = True
            self.on_cancel()


@dataclass
class Leases:
    """All leases that this process holds; used from the event loop and from the keeper's thread.
    `on_fenced` is called for each write that was refused since the run was not its owner's."""

    lease: timedelta
    on_fenced: Callable[[], None] = lambda: None
    _held: dict[tuple[Key, int], HeldLease] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(
        self,
        claimed: Claimed,
        asked_at: float,
        on_lost: Callable[[], None],
        on_cancel: Callable[[], None],
    ) -> HeldLease:
        """Notes a lease that was asked for at `asked_at` (boot seconds, before the claim). An
        earlier attempt of the same run that still ends here has lost its own by that."""
        held = HeldLease(
            claimed.scope_id,
            claimed.run_id,
            claimed.fence,
            claimed.owner_token,
            asked_at + self.lease.total_seconds(),
            on_lost,
            on_cancel,
        )
        with self._lock:
            earlier = self._of(claimed.key) if claimed.fence > 1 else []
            self._held[(claimed.key, claimed.fence)] = held
        for one in earlier:
            one.lose()
        return held

    def _of(self, key: Key) -> list[HeldLease]:
        return [held for (held_key, _), held in self._held.items() if held_key == key]

    def let_go(self, held: HeldLease) -> None:
        with self._lock:
            self._held.pop(((held.scope_id, held.run_id), held.fence), None)

    def all(self) -> list[HeldLease]:
        with self._lock:
            return list(self._held.values())

    def find(self, key: Key, fence: int) -> HeldLease | None:
        with self._lock:
            return self._held.get((key, fence))

    def extend(self, held: HeldLease, asked_at: float) -> None:
        held.until = max(held.until, asked_at + self.lease.total_seconds())


class Keeper:
    """Renews the leases of one process from a thread and a connection of its own, and keeps the
    session lock that shows other processes that this one lives."""

    def __init__(
        self,
        database: Database,
        leases: Leases,
        settings: EngineSettings,
        enter: Callable[[Tx], Awaitable[bool]],
    ) -> None:
        self._database = database
        self._leases = leases
        self._settings = settings
        self._enter = enter
        self._stop = threading.Event()
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._run, name="earnest-keeper", daemon=True)

    def start(self, patience: float = 30.0) -> bool:
        """Starts the thread; waits until its connection stands. Says whether it does."""
        self._thread.start()
        return self._connected.wait(patience)

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        while not self._stop.is_set():
            try:
                await self._keep_connected()
            except Exception as error:  # whatever it is: without a keeper every lease runs out
                log.warning("keeper.disconnected", error=f"{type(error).__name__}: {error}")
                await self._pause(_RETRY_AFTER)

    async def _keep_connected(self) -> None:
        # A short statement time-out: a renewal that hangs must not take the next ones with it.
        limit = f"{int(self._settings.renew_every.total_seconds() * 1000)}ms"
        connection = await self._database.connect(
            application_name="earnest keeper", statement_timeout=limit, lock_timeout=limit
        )
        try:
            entered = await self._enter(connection)
            self._connected.set()
            while not self._stop.is_set():
                entered = entered or await self._enter(connection)
                await renew(connection, self._leases, self._settings.lease)
                await self._pause(self._settings.renew_every.total_seconds(), connection)
        finally:
            connection.terminate()

    async def _pause(self, seconds: float, connection: Tx | None = None) -> None:
        """Waits in short looks: a stop, a lapsed lease and a lost connection are noticed soon."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.1))
            drop_lapsed(self._leases)
            if connection is not None and connection.is_closed():
                raise ConnectionError("the keeper's connection was closed")


async def renew(tx: Tx, leases: Leases, lease: timedelta) -> None:
    """Renews every held lease in one statement and acts on each answer: *renewed*, *refused*
    (lost), *settled* (nothing to do) or no answer (*busy*: the row is locked; next time)."""
    drop_lapsed(leases)
    held = [one for one in leases.all() if not one.lost]
    if not held:
        return
    asked_at = boot_seconds()
    reach("renew.before")
    rows = await tx.fetch(
        sql("renew_leases"),
        [one.scope_id for one in held],
        [one.run_id for one in held],
        [one.fence for one in held],
        [one.owner_token for one in held],
        lease,
    )
    reach("renew.after")
    answers = {(row["scope_id"], row["run_id"], row["fence"]): row for row in rows}
    for one in held:
        answer = answers.get((one.scope_id, one.run_id, one.fence))
        if answer is None:
            continue
        if answer["answer"] == "renewed":
            leases.extend(one, asked_at)
            if answer["cancel_requested"]:
                one.tell_cancel()
        elif answer["answer"] == "refused":
            one.lose()


def drop_lapsed(leases: Leases) -> None:
    """Leases whose deadline passed on this process's own clock are lost, whatever the database
    would say: it may have given the run to somebody else."""
    for one in leases.all():
        if not one.valid():
            one.lose()

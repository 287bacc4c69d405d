"""The one way to PostgreSQL: a pool, promises in transactions, and what happens when it is away.

A *promise* is a piece of work that commits as a whole. It is tried again for exactly three reasons:

* the server says 40P01 (deadlock) or 40001 (serialization): nothing was committed;
* it says 55P03: somebody sits on a row. Nothing was committed either, and the connection is for
  others until the next try;
* the connection was lost. Then nobody knows whether it was committed, so the caller's `reread`
  looks for the traces first (an owner token, a send token, a run id), and only when there are none
  the work is done again. Work without a `reread` must be harmless to repeat.

All end when the caller's patience does.

A promise that did something passes two crash points, `NAME.before` and `NAME.after` its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakSet

import asyncpg

from earnest.domain import canonical
from earnest.domain.crash_points import reach, watched
from earnest.domain.errors import Busy, DatabaseUnavailable
from earnest.store.statements import sql

T = TypeVar("T")
Tx = asyncpg.Connection
Record = asyncpg.Record

UniqueViolation = asyncpg.UniqueViolationError
RETRIED = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
# Somebody sits on a row for longer than a statement waits for it.
SAT_ON = asyncpg.LockNotAvailableError
BUSY = (SAT_ON, asyncpg.QueryCanceledError)
LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # asyncpg's word for a pooled connection whose server said goodbye while nobody used it.
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    # Refused, reset or timed out; no such socket; a name that is not resolved for a while, a
    # network that is away, several addresses of one host that failed each in its own way.
    OSError,
)

# The planner's guesses about arrays of ids turn whole-table scans and hash joins on as soon as a
# batch has a few hundred of them; every statement here is meant to walk an index. They belong to
# the server settings of the connection: a pool resets what `SET` changed.
ENGINE_SETTINGS = {
    "search_path": "earnest",
    "application_name": "earnest",
    "timezone": "UTC",
    # A second statement under a lock has to see what was committed before the lock was got.
    "default_transaction_isolation": "read committed",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "lock_timeout": "10s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
}
# So many rows on which somebody sits must not keep as many connections from everybody else. It is
# the promise that waits for long, between its tries.
POOL_SETTINGS = {**ENGINE_SETTINGS, "lock_timeout": "1s"}
# At most so many seconds pass before a row on which somebody sits is tried again: first, and later.
_SOON, _LATER = 0.5, 2.0


def _encode_jsonb(data: bytes) -> bytes:
    return b"\x01" + data


def _decode_jsonb(data: bytes) -> Any:
    return canonical.decode(bytes(data[1:]))


_TIDIED_EVERY = 30.0  # seconds

# Connections that an app's own code has had in its hands; see `lend`.
_LENT: WeakSet[Tx] = WeakSet()


def lend(tx: Tx) -> None:
    """Notes that an app's own code gets this connection: whatever it sets, locks or listens to
    there ends before somebody else has it."""
    if (connection := _behind(tx)) is not None:
        _LENT.add(connection)


def _behind(tx: Tx) -> Tx | None:
    """The connection behind the pool's proxy; `None` once that was taken back."""
    connection: Tx | None = getattr(tx, "_con", tx)
    return connection


def _is_as_new(tx: Tx) -> bool:
    """Whether the next one may have it as it is."""
    connection = _behind(tx)
    return (
        connection is not None
        and not connection.is_closed()
        and not connection.is_in_transaction()
        and connection not in _LENT
    )


async def _reset_if_lent(connection: Tx) -> None:
    """The engine's own statements leave nothing behind in a session. Resetting it all the same
    would be one more message to the server for each of them."""
    if connection in _LENT:
        _LENT.discard(connection)
        await connection.execute(connection.get_reset_query())


async def let_wait(tx: Tx, span: str) -> None:
    """To the end of the transaction a statement waits so long (such as `10s`) for a row."""
    await tx.execute(sql("let_wait"), span)


def not_the_hooks_fault(tx: Tx, error: BaseException) -> bool:
    """Whether an error inside an app's own code in a transaction is the database's: then the
    promise is tried again as always."""
    return isinstance(error, RETRIED) or tx.is_closed()


async def prepare_connection(connection: Tx) -> None:
    """Sends canonical JSON bytes as jsonb and reads values back."""
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        format="binary",
        encoder=_encode_jsonb,
        decoder=_decode_jsonb,
    )


class Database:
    """A pool on one PostgreSQL. `revive` is called (at most one at a time) while the server cannot
    be reached; the embedded server is brought back by it. `patience` bounds, in seconds, how long a
    promise waits for the server before it raises `DatabaseUnavailable`, or is done again because of
    others before it raises `Busy`; `sat_on`, how long it waits for a row on which somebody sits
    before it raises what the server said of it, one of `BUSY`."""

    def __init__(
        self,
        url: str,
        *,
        size: int = 10,
        patience: float = 30.0,
        sat_on: float = 10.0,
        revive: Callable[[], Awaitable[None]] | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.url = url
        self.size = size
        self.patience = patience
        self.sat_on = sat_on
        self._revive = revive
        self._settings = settings or {}
        self._reviving = asyncio.Lock()
        self._pool: asyncpg.Pool | None = None
        # Connections that were taken from the pool and wait for their next use: to go through the
        # pool each time would cost more than many a statement. Whoever had to ask the pool is
        # `asking`; what comes back then goes there.
        self._at_hand: list[Tx] = []
        self._unused = 0  # so many, the first ones, were not used since the last tidying
        self._tidying: asyncio.TimerHandle | None = None
        self._going_back: asyncio.Task[None] | None = None
        self._asking = 0
        self._closing = False

    async def open(self) -> Database:
        self._closing = False
        if self._pool is None:
            self._pool = await self._persist(self._create_pool, time.monotonic() + self.patience)
        return self

    async def close(self) -> None:
        """Waits a moment for those who still use a connection."""
        pool, self._closing = self._pool, True
        if pool is None:
            return
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None
        try:
            async with asyncio.timeout(5):
                while self._at_hand:
                    await self._release(self._at_hand.pop())
                await pool.close()
        except (TimeoutError, *LOST):
            pool.terminate()
        self._pool = None

    async def __aenter__(self) -> Database:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self, **settings: str) -> Tx:
        """A connection of its own, outside the pool: for session locks, LISTEN and the keeper."""
        named = {**ENGINE_SETTINGS, **self._settings, **settings}
        connection = await asyncpg.connect(self.url, server_settings=named, timeout=10)
        await prepare_connection(connection)
        return connection

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Tx]:
        tx = await self._take()
        try:
            yield tx
        except BaseException as error:
            if isinstance(error, LOST):
                self._drop_at_hand()
            await self._release(tx)  # The pool sees to what was left open or on its way.
            raise
        if self._closing or self._asking or not _is_as_new(tx):
            await self._release(tx)
        else:
            self._keep_at_hand(tx)

    def _keep_at_hand(self, tx: Tx) -> None:
        self._at_hand.append(tx)
        if self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_later(_TIDIED_EVERY, self._tidy)

    def _tidy(self) -> None:
        """What nobody needed for a while goes back to the pool, which closes it in time: what lies
        between here and the server may forget a connection that is never used."""
        self._tidying = None
        unused, self._at_hand = self._at_hand[: self._unused], self._at_hand[self._unused :]
        self._unused = len(self._at_hand)
        if self._at_hand:
            self._tidying = asyncio.get_running_loop().call_later(_TIDIED_EVERY, self._tidy)
        if unused:
            self._going_back = asyncio.create_task(self._give_back(unused))

    async def _give_back(self, unused: list[Tx]) -> None:
        for tx in unused:
            with contextlib.suppress(*LOST):
                await self._release(tx)

    async def _take(self) -> Tx:
        while self._at_hand:
            tx = self._at_hand.pop()
            self._unused = min(self._unused, len(self._at_hand))
            if _is_as_new(tx):
                return tx
            await self._release(tx)
        if self._pool is None or self._closing:
            raise DatabaseUnavailable("the database is not open; open it before using it")
        self._asking += 1
        try:
            return await self._pool.acquire(timeout=10)  # type: ignore[return-value]
        finally:
            self._asking -= 1

    def _drop_at_hand(self) -> None:
        """Where one connection was lost the others may be, and not know it yet."""
        self._unused = 0
        while self._at_hand:
            self._at_hand.pop().terminate()

    async def _release(self, tx: Tx) -> None:
        if self._pool is not None:
            await self._pool.release(tx)  # type: ignore[arg-type]

    async def promise(
        self,
        name: str,
        work: Callable[[Tx], Awaitable[T]],
        *,
        reread: Callable[[Tx], Awaitable[T | None]] | None = None,
        patience: float | None = None,
        sat_on: float | None = None,
        one_statement: bool = False,
    ) -> T:
        """Runs `work` in one transaction and returns its result once it is committed.

        `patience` and `sat_on`: other seconds than the database's own.

        `one_statement`: all that `work` writes is one statement, which is a transaction by itself;
        two messages to the server are saved. While crash points are watched it is framed all the
        same: between its work and its commit is where a process is to die.
        """

        async def once() -> T:
            async with self.connection() as tx:
                if one_statement and not watched():
                    return await work(tx)
                async with tx.transaction():
                    result = await work(tx)
                    # An empty answer (no rows, 0, False) means that nothing was done.
                    done = result is None or bool(result)
                    if done:
                        reach(f"{name}.before")
                if done:
                    reach(f"{name}.after")
                return result

        async def again() -> T:
            if reread is not None:
                async with self.connection() as tx:
                    known = await reread(tx)
                if known is not None:
                    return known
            return await once()

        until = time.monotonic() + (self.patience if patience is None else patience)
        return await self._persist(once, until, again, sat_on)

    async def fetch(self, statement: str, *arguments: Any) -> list[Record]:
        """The rows of a named statement that only reads."""

        async def once() -> list[Record]:
            async with self.connection() as tx:
                return await tx.fetch(sql(statement), *arguments)

        return await self._persist(once, time.monotonic() + self.patience)

    async def fetchrow(self, statement: str, *arguments: Any) -> Record | None:
        rows = await self.fetch(statement, *arguments)
        return rows[0] if rows else None

    async def _create_pool(self) -> asyncpg.Pool:
        pool = asyncpg.create_pool(
            self.url,
            min_size=1,
            max_size=self.size,
            init=prepare_connection,
            reset=_reset_if_lent,
            server_settings={**POOL_SETTINGS, **self._settings},
            statement_cache_size=400,
            max_cached_statement_lifetime=0,
            max_inactive_connection_lifetime=300,
            timeout=10,
        )
        await pool
        return pool

    async def _persist(
        self,
        once: Callable[[], Awaitable[T]],
        until: float,
        again: Callable[[], Awaitable[T]] | None = None,
        sat_on: float | None = None,
    ) -> T:
        attempt, wait = once, 0.02
        sits_until = time.monotonic() + (self.sat_on if sat_on is None else sat_on)
        while True:
            try:
                return await attempt()
            except RETRIED as error:
                if time.monotonic() >= until:
                    raise Busy(f"others were always first: {error}; try again later") from error
                wait = min(wait * 2, 1.0)
            except SAT_ON:
                if time.monotonic() >= sits_until:
                    raise
                wait = min(max(wait * 2, _SOON), _LATER)
            except LOST as error:
                if isinstance(error, ValueError):
                    raise  # asyncpg's word for an argument that does not fit; nothing was lost
                attempt, wait = again or once, min(wait * 2, 0.5)
                await self._bring_back(error, until)
            await asyncio.sleep(wait * (0.5 + random.random() / 2))

    async def _bring_back(self, error: BaseException, until: float) -> None:
        if time.monotonic() >= until:
            raise DatabaseUnavailable(f"the database does not answer: {error}") from error
        if self._revive is not None and not self._reviving.locked():
            async with self._reviving:
                await self._revive()

"""Sequencing: how a scope's events get one order that skips nothing and waits for nobody.

Events are numbered within their run. Who watches a whole scope needs one number for all of them, a
*position*, and it must hold for good: whoever was given position 7 has everything up to 7. Events
are committed in another order than they are written in, so no number that a writer draws can be
one. The feed is therefore appended to after the fact, in *passes*.

What the database is authoritative for
    `event` is the truth, `feed` says in which order it is told, `sequenced` how far the last pass
    came. Nothing about the feed is kept in a process; a pass that dies has done nothing.

What a pass takes
    Each event carries the number of the transaction that wrote it. PostgreSQL tells for any moment
    which transactions were still open (a snapshot). The last pass kept that; what is new is exactly
    what it could not see and the present one can:

        written by a transaction that began after the last look    `written_by >= seen_below`
        written by one that was open then and is committed now     `written_by = ANY (still_open)`

    A transaction that stays open for an hour is one number in `still_open` and holds nothing up; a
    day later its events are found by it. One that was rolled back has no events and leaves the
    list. Nothing is ever given up, and nothing is guessed from how long something took.

Why a run stays in order
    A run's next number is given under the lock of its execution, which is kept to the commit: who
    sees event 3 sees event 2. So all that is visible of a run and not in the feed yet is one piece
    that begins after the last one, and it is taken as a whole. A pass that takes only the first few
    thousand of many events finds *runs* by transaction, and takes of each all there is; what it
    finds again later is there already.

Who does it
    Whoever watches, or reads a page: the process in which somebody wants to know. There is no
    leader and no lease. Passes exclude each other by a lock of the transaction, and lock and pass
    go to the server in one message: a process that is stopped in the middle holds nothing, because
    the middle is not in the process. Whoever comes second finds that there is nothing left to do.

    Writers know nothing of all this. They draw no number, touch no row that another one touches,
    and ring no bell inside their transactions. While nobody watches nothing is done; the first one
    to come has the rest caught up.

The window of trust
    Transaction numbers mean something on one server. If the database is found on another one (a
    dump that was restored), everything is gone through again from the first number, and events
    with numbers that the new server has not come to yet get one of its own.

    A crash changes nothing of this. What a pass saw to be over had written its end to the log
    before the pass wrote its own, so where the pass is kept, so is that; and the number of a
    transaction that left no trace was among those still open, where it is looked for again.
"""

from __future__ import annotations

import asyncio

from earnest.engine.process.engine import Engine
from earnest.store import epochs, feed


class Sequencer:
    """The passes of one process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._moved_in = False
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def catch_up(self, within: float | None = None) -> None:
        """Returns when all that was committed before is in the feed; after `within` seconds also
        if it is not. Raises what kept it from being done."""
        task = self._begin_after_now()
        done, _ = await asyncio.wait({task}, timeout=within)
        if done:
            task.result()

    def _begin_after_now(self) -> asyncio.Task[None]:
        """All who come while one look is under way share the next: the one under way may have
        begun before what they want to know."""
        if self._next is None:
            self._next = asyncio.create_task(self._look_after(self._current))
            self._next.add_done_callback(_noticed)
        return self._next

    async def _look_after(self, one: asyncio.Task[None] | None) -> None:
        if one is not None:
            await asyncio.wait({one})
        self._current, self._next = self._next, None
        await self._look()

    async def _look(self) -> None:
        if not self._moved_in:
            await self._move_in()
        database = self._engine.database
        more = await feed.is_behind(database)
        while more:
            more = await database.promise("sequence", feed.append, one_statement=True)

    async def _move_in(self) -> None:
        """Makes sure once that the numbers of transactions are those of this server."""
        database = self._engine.database
        identity = await epochs.server_identity(database)
        if identity is not None:
            cluster = identity.partition("/")[0]
            await database.promise("sequence", lambda tx: feed.move_to(tx, cluster))
        while await database.promise("sequence", feed.adopt):
            pass
        self._moved_in = True


def _noticed(task: asyncio.Task[None]) -> None:
    """Nobody may have waited to the end; then the next look tells what is wrong."""
    if not task.cancelled():
        task.exception()

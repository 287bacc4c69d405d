"""Working: the loops of a worker process, from recovery to drain.

    start ─ recover ─▶ claim ⇄ run ⇄ settle ─ stop asked ─▶ drain ─ hand back ─▶ end

Nothing is claimed before recovery has finished (P18). A worker that is asked to stop claims no
more, lets running work end for a while, hands back what goes on, and loses nothing (P19).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from earnest.domain.errors import DatabaseUnavailable, EarnestError
from earnest.engine.attempts.attempting import Attempting, Stop
from earnest.engine.attempts.minding import Minder, repeat, ripen
from earnest.engine.attempts.remembering import Rememberer
from earnest.engine.attempts.settling import Ending, Settled, Settler, Wish, settle_alone
from earnest.engine.operations import reconciling
from earnest.engine.process import announcing
from earnest.engine.process.doorbells import STOP, WORK
from earnest.engine.process.engine import Engine
from earnest.engine.process.instances import Serves
from earnest.engine.process.logs import get_logger
from earnest.engine.runs.leasing import Keeper, Leases, boot_seconds
from earnest.store import executions
from earnest.store.database import LOST, Tx
from earnest.store.executions import Claimed

log = get_logger("earnest.worker")

_GATHER = timedelta(milliseconds=2)
_HURRY = timedelta(seconds=1)


class Worker:
    """Claims and runs work until it is stopped. `lanes`: which to serve, all known ones by default.
    `alone`: the embedded server was just started and nobody else is connected to it. `beside`: what
    else goes on in this process from its recovery to its end."""

    def __init__(
        self,
        engine: Engine,
        *,
        lanes: list[str] | None = None,
        alone: bool = False,
        keeper: bool = True,
        beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    ) -> None:
        self.engine = engine
        self._beside = beside
        self.lanes = lanes or engine.kinds.lanes()
        self.ready = asyncio.Event()
        self._alone = alone
        self._stop = asyncio.Event()
        self._hurried = asyncio.Event()
        self._leases = Leases(engine.settings.lease, engine.metrics.fenced_writes.add)
        self._rememberer = Rememberer(engine, self._leases)
        self._settler = Settler(engine)
        self._minder = Minder(engine)
        self._reaper = self._minder.reaper
        self._attempts: dict[asyncio.Future[Settled | None], Attempting] = {}
        self._handlers = self._unended = 0
        self._room = asyncio.Event()
        self._lane_turn = 0
        self._claim_in_doubt = False
        self._claiming: asyncio.Task[int] | None = None
        self._serves = Serves()
        self._keeper = (
            Keeper(engine.database, self._leases, engine.settings, self._enter) if keeper else None
        )

    async def run(self) -> None:
        """Works until `stop`; returns when everything is settled or handed back. If it is cancelled
        instead, as by a program that ends, it hurries and hands back first."""
        await self.engine.bells.start()
        loops: list[asyncio.Task[None]] = []
        stop = asyncio.create_task(self._stop.wait())
        try:
            await self._start()
            loops += [
                asyncio.create_task(loop)
                for loop in (
                    repeat(self.engine, "claim", self._claim_round, WORK),
                    *self._minder.loops(),
                    repeat(self.engine, "stop", self._stop_round, STOP),
                    *(other() for other in self._beside),
                )
            ]
            self.ready.set()
            log.info("worker.ready", lanes=self.lanes, concurrency=self._free())
            # A loop ends only by a mistake of ours: better to drain and fail than to look alive.
            await asyncio.wait({stop, *loops}, return_when=asyncio.FIRST_COMPLETED)
            broken = [loop.exception() for loop in loops if loop.done()]
            claiming, asking, *_ = loops
            await _end([stop, claiming, asking])
            await self._drain()
            for error in broken:
                raise error or RuntimeError("a loop of the worker ended")
        except asyncio.CancelledError:
            # At once: a handler may have been cancelled with it, and not know that it was a drain.
            self._hand_back_all()
            self.hurry()
            await _end([stop, *loops])
            await self._drain()
            raise
        finally:
            await _end([stop, *loops])
            await self._leave()

    def stop(self) -> None:
        """Asks the worker to drain and end. Harmless when repeated."""
        self._stop.set()

    def hurry(self) -> None:
        """Asks the worker to end at once: what runs is handed back. A call that does not end in a
        moment is left behind in doubt; it and its run are taken over when this process is gone."""
        self._stop.set()
        self._hurried.set()

    async def drain_once(self) -> int:
        """Claims and runs what is due until nothing is, without the loops; for tests and scripts.
        Returns how many attempts were run."""
        count = 0
        while True:
            if self._claim_in_doubt:
                await self._hand_back_unknown()
            await self._reaper.look()
            await ripen(self.engine)
            claimed = await self._claim_all()
            asked = await reconciling.ask_due(self.engine)
            if not (claimed or asked or self._attempts or self._claim_in_doubt):
                return count
            count += claimed
            if self._attempts:
                await asyncio.wait(self._attempts)

    async def hand_back(self) -> None:
        """Gives back what a `drain_once` that was cancelled has left running; then this worker is
        not used any more."""
        await self._until_ended({self._claiming} if self._claiming else set(), None)
        self.hurry()
        await self._drain()

    # ---- start and end ---------------------------------------------------------------------

    async def _start(self) -> None:
        engine = self.engine
        self._serves = Serves(
            tuple(self.lanes),
            tuple(engine.kinds),
            tuple(engine.effect_kinds()),
            engine.settings.concurrency,
        )
        if self._keeper is not None and not await asyncio.to_thread(self._keeper.start):
            log.warning("keeper.not_connected")
        recovered = await self._reaper.recover(alone=self._alone)
        if recovered:
            log.info("worker.recovered", moved=recovered)
        await announcing.announce(self.engine)

    async def _enter(self, tx: Tx) -> bool:
        return await self.engine.instance.enter(tx, self._serves)

    async def _drain(self) -> None:
        await self._end_claiming()
        if self._claim_in_doubt:
            with contextlib.suppress(EarnestError, *LOST):
                await self._hand_back_unknown()
        if self._attempts:
            log.info("worker.draining", running=len(self._attempts))
            await self._until_ended(self._attempts, self.engine.settings.drain)
        self._hand_back_all()
        await self._until_ended(self._attempts, None)
        if self._hurried.is_set() and self._attempts:
            await asyncio.wait(set(self._attempts), timeout=_HURRY.total_seconds())
        await self._until_ended(self._minder.questions, None)

    def _hand_back_all(self) -> None:
        for attempt in list(self._attempts.values()):
            attempt.stop(Stop.DRAIN)

    async def _end_claiming(self) -> None:
        """A claim that was sent is waited for; by a hurried worker for a moment, and then it is
        broken off: nothing is begun by who is gone."""
        claiming = self._claiming
        if claiming is None:
            return
        await self._until_ended({claiming}, None)
        await asyncio.wait({claiming}, timeout=_HURRY.total_seconds())
        if not claiming.done():
            self._claim_in_doubt = True
            await _end([claiming])

    async def _until_ended(
        self, tasks: Collection[asyncio.Future[Any]], patience: timedelta | None
    ) -> None:
        """Until all of these have ended, patience is over, or the worker is hurried."""
        if not tasks or self._hurried.is_set():
            return
        seconds = None if patience is None else patience.total_seconds()
        ended = asyncio.create_task(asyncio.wait(set(tasks)))
        hurried = asyncio.create_task(self._hurried.wait())
        await asyncio.wait({ended, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await _end([ended, hurried])

    async def _leave(self) -> None:
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.stop)
        if self._attempts:
            # No farewell: whoever lives sees that this process is gone, and takes them over.
            log.warning("worker.left_behind", running=len(self._attempts))
        else:
            with contextlib.suppress(EarnestError, *LOST):
                await self.engine.instance.leave(self.engine.database)
        await self.engine.bells.stop()
        log.info("worker.ended")

    # ---- the loops -------------------------------------------------------------------------

    async def _claim_round(self) -> timedelta:
        if self._claim_in_doubt:
            await self._hand_back_unknown()
        await self._have_room()
        claimed = await self._claim_all()
        if claimed or self._claim_in_doubt:
            return timedelta(0)
        ripened = await ripen(self.engine)
        return timedelta(0) if ripened else await self._idle()

    async def _idle(self) -> timedelta:
        """Until the next delayed run is due, and never longer than a poll."""
        row = await self.engine.database.fetchrow("next_due")
        seconds = None if row is None else row["seconds"]
        poll = self.engine.settings.poll
        if seconds is None:
            return poll
        return max(timedelta(milliseconds=5), min(timedelta(seconds=seconds), poll))

    async def _stop_round(self) -> timedelta:
        """Tells running attempts that they were asked to stop."""
        if self._attempts:
            rows = await self.engine.database.fetch(
                "cancelled_among", self.engine.instance.instance_id
            )
            for row in rows:
                held = self._leases.find((row["scope_id"], row["run_id"]), row["fence"])
                if held is not None:
                    held.tell_cancel()
        return self.engine.settings.watch_every

    # ---- claiming --------------------------------------------------------------------------

    def _free(self) -> int:
        """How many handlers may be begun. One that is over no longer counts while its ending is on
        the way to the database: the next batch is claimed while the last one settles. As many
        again may be on that way. Both counts begin with the claim."""
        most = self.engine.settings.concurrency
        return min(most - self._handlers, 2 * most - self._unended)

    async def _have_room(self) -> None:
        """Waits for room to claim. A worker that is nearly full waits a moment longer: handlers
        that end one after the other are followed by one claim, not by one each."""
        while self._free() <= 0:
            self._room.clear()
            await self._room.wait()
        if self._is_nearly_full():
            await asyncio.sleep(_GATHER.total_seconds())

    def _is_nearly_full(self) -> bool:
        return self._free() < max(1, self.engine.settings.concurrency // 4)

    async def _claim_all(self) -> int:
        """Claims until there is little room or nothing more; returns how many. A claim that was
        sent is waited for by the drain if the loop is ended meanwhile: what it gives is ours to run
        or to hand back."""
        self._claiming = asyncio.create_task(self._claim_rounds())
        return await asyncio.shield(self._claiming)

    async def _claim_rounds(self) -> int:
        """One claim follows the other without a turn of the event loop between them, so that the
        database sees to the next while this process runs what the last one gave."""
        count = found = await self._claim_each_lane()
        while found and not self._is_nearly_full() and self._may_claim():
            found = await self._claim_each_lane()
            count += found
        return count

    async def _claim_each_lane(self) -> int:
        """One claim on each, beginning with another one every time."""
        count = 0
        self._lane_turn += 1
        for offset in range(len(self.lanes)):
            if self._free() <= 0 or not self._may_claim():
                break
            lane = self.lanes[(self._lane_turn + offset) % len(self.lanes)]
            count += await self._claim_now(lane)
        return count

    def _may_claim(self) -> bool:
        """A claim whose reply was lost may stand: its runs are this instance's, and nobody works on
        them. They are handed back before anything else is claimed."""
        return not (self._stop.is_set() or self._claim_in_doubt)

    async def _claim_now(self, lane: str) -> int:
        settings = self.engine.settings
        limit = min(self._free(), settings.claimed_at_once)
        kinds = [kind.name for kind in self.engine.kinds.values()]
        tries, asked_at = 0, boot_seconds()

        async def work(tx: Tx) -> list[Claimed]:
            nonlocal tries, asked_at
            tries, asked_at = tries + 1, boot_seconds()
            self._claim_in_doubt |= tries > 1
            instance_id = self.engine.instance.instance_id
            return await executions.claim(tx, lane, kinds, instance_id, settings.lease, limit)

        began = time.perf_counter()
        try:
            claimed = await self.engine.database.promise("claim", work, one_statement=True)
        except DatabaseUnavailable:
            self._claim_in_doubt = True
            raise
        if claimed:
            self._count(claimed, time.perf_counter() - began)
            self._handlers += len(claimed)
            self._unended += len(claimed)
            asyncio.get_running_loop().call_soon(self._begin_all, claimed, asked_at)
            self.engine.bells.moved(*(one.run_id for one in claimed))
        return len(claimed)

    def _count(self, claimed: Sequence[Claimed], seconds: float) -> None:
        metrics = self.engine.metrics
        metrics.claim_seconds.observe(seconds)
        for (kind, lane), count in Counter((one.kind, one.lane) for one in claimed).items():
            metrics.runs_claimed.add(kind, lane, by=count)

    def _begin_all(self, claimed: Sequence[Claimed], asked_at: float) -> None:
        for one in claimed:
            self._begin(one, asked_at)

    def _begin(self, claimed: Claimed, asked_at: float) -> None:
        attempt = Attempting(
            self.engine,
            claimed,
            self._leases,
            self._rememberer,
            self._settler,
            asked_at,
            self._handler_over,
        )
        self._attempts[attempt.ended] = attempt
        attempt.ended.add_done_callback(self._ended)
        attempt.begin()

    def _handler_over(self) -> None:
        self._handlers -= 1
        self._room.set()

    def _ended(self, ended: asyncio.Future[Settled | None]) -> None:
        del self._attempts[ended]
        self._unended -= 1
        self._room.set()

    async def _hand_back_unknown(self) -> None:
        """Runs that the database gives to this instance and that it does not know of: the reply of
        their claim was lost."""
        rows = await self.engine.database.fetch("held_by", self.engine.instance.instance_id)
        for row in rows:
            key = (row["scope_id"], row["run_id"])
            if self._leases.find(key, row["fence"]) is None:
                await self._hand_back(key, row["fence"], row["owner_token"])
        self._claim_in_doubt = False

    async def _hand_back(self, key: executions.Key, fence: int, owner_token: uuid.UUID) -> None:
        row = await self.engine.database.fetchrow("find_run", *key, None)
        if row is not None:
            claimed = executions.as_claimed(row, fence, owner_token)
            await settle_alone(self.engine, claimed, Ending(Wish.HAND_BACK))


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""Relaying: what was committed is told to the sinks, at least once, and delays nobody (P13, P17).

    commit ─▶ outbox row ─┐
    commit ─▶ event ─ feed ┴─ spread ─▶ delivery ─ take ─▶ send ─▶ ack
                                            ▲                └─▶ put off, or buried as a dead letter
                                            └── comes due again ──┘

Spreading
    A message of the outbox leaves it in the transaction that makes one delivery for each sink that
    wants its type. Run events have no row of their own there: each sink has a place in its scope's
    feed (`streams/sequencing.py`: committed, without a gap, in one order), and what comes next
    there becomes deliveries in the transaction that moves the place. Whoever commits knows nothing
    of sinks. A sink for which very much is pending is not spread to for a while: the feed keeps it.

Taking
    A delivery is taken under a token, and comes due again at the end of a lease, should the process
    be gone by then. It is sent outside of any transaction and marked afterwards, by the token. So
    one that is sent and not marked is sent again, under the same message id: receivers that count
    use an inbox. Each sink has so many places at once in a process, so a slow one holds up itself.

What does not arrive is tried again after 2 s, 6 s, 18 s … up to six hours, spread so that a sink
that comes back is not stormed; `Retry-After` is heeded. After 20 attempts, about three days, it is
a dead letter, which stays until somebody replays it. A webhook that answers 410 is disabled.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from earnest.domain import canonical, ids
from earnest.domain.crash_points import reach
from earnest.domain.errors import EarnestError
from earnest.engine.messages.sending import Outcome, Sender, make_sender
from earnest.engine.process.doorbells import MOVED
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.engine.streams.sequencing import Sequencer
from earnest.store import feed, inbox, messages, sinks
from earnest.store.database import LOST, Tx
from earnest.store.feed import Fed, Place
from earnest.store.messages import Follower, Message, NewDelivery, Taken

log = get_logger("earnest.relay")

PACE = timedelta(milliseconds=20)
_LAST_ANSWERS = 5.0  # seconds
_PRUNED = 200


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """`per_sink` and `at_once` bound what is under way in this process; `backlog` what is pending
    of one sink before the feed keeps the rest; `page` what is spread at once. `kept` is how long
    what arrived can be looked at, `entries_kept` how long the inbox knows what it handled: longer
    than any sender repeats itself."""

    poll: timedelta = timedelta(milliseconds=500)
    lease: timedelta = timedelta(seconds=60)
    timeout: timedelta = timedelta(seconds=15)
    per_sink: int = 8
    at_once: int = 64
    page: int = 500
    backlog: int = 2000
    first_wait: timedelta = timedelta(seconds=2)
    growth: float = 3.0
    longest_wait: timedelta = timedelta(hours=6)
    longest_heeded: timedelta = timedelta(days=1)
    most_attempts: int = 20
    kept: timedelta = timedelta(days=1)
    entries_kept: timedelta = timedelta(days=30)
    prune_every: timedelta = timedelta(minutes=10)

    def wait(self, attempts: int, asked: timedelta | None = None) -> timedelta:
        """How long after so many attempts; not before the sink asked to be called again."""
        grown = self.first_wait * min(self.growth ** (attempts - 1), 1e6)
        wait = min(grown, self.longest_wait) * (0.75 + random.random() / 2)
        return max(wait, min(asked or timedelta(0), self.longest_heeded))


class Relay:
    """One process's part; any number of them relay beside each other."""

    def __init__(
        self,
        engine: Engine,
        settings: RelaySettings | None = None,
        senders: Mapping[str, Sender] | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings or RelaySettings()
        self._senders = dict(senders or {})
        self._sequencer = Sequencer(engine)
        self._under_way: dict[asyncio.Task[None], Taken] = {}
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Relays until it is cancelled; answers that are on their way are waited for a moment."""
        loops = [
            asyncio.create_task(self._repeat(self.spread, MOVED)),
            asyncio.create_task(self._repeat(self._send_round, MOVED)),
            asyncio.create_task(self._repeat(self.prune, None)),
        ]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._end()

    async def relay_once(self) -> int:
        """Spreads and sends what is due until nothing is, without the loops; for tests and
        scripts. Returns how many were sent."""
        count = 0
        while True:
            while await self.spread() == timedelta(0):
                pass
            taken = await self.take()
            if not taken:
                return count
            await asyncio.gather(*(self._deliver(one) for one in taken))
            count += len(taken)

    async def close(self) -> None:
        for sender in self._senders.values():
            await sender.close()

    async def _end(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_LAST_ANSWERS)
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self.close()

    async def _repeat(self, one: Callable[[], Awaitable[timedelta]], bell: str | None) -> None:
        """What cannot be done now is done by the next round. Where much moves and nothing of it is
        for a sink, rounds become as seldom as without a bell: they cost what the runs then lack."""
        pace = PACE
        while True:
            try:
                wait = await one()
            except (EarnestError, asyncpg.PostgresError, *LOST) as error:
                log.warning("relay.round_failed", error=str(error))
                wait = self._settings.poll
            rang = wait > timedelta(0) and await self._wait(bell, wait)
            pace = min(2 * pace, self._settings.poll) if rang else PACE
            await asyncio.sleep(pace.total_seconds())

    async def _wait(self, bell: str | None, wait: timedelta) -> bool:
        if bell is not None:
            return await self._engine.bells.wait(bell, wait)
        await asyncio.sleep(wait.total_seconds())
        return False

    # ---- spreading -------------------------------------------------------------------------

    async def spread(self) -> timedelta:
        """Makes deliveries of what is new; returns how long to wait for more."""
        full = await self._spread_messages() == self._settings.page
        if await messages.has_followers(self._engine.database):
            await self._sequencer.catch_up(self._settings.poll.total_seconds())
            behind = await messages.followers_behind(
                self._engine.database, self._settings.backlog, self._settings.page
            )
            full |= await self._spread_events(behind)
        return timedelta(0) if full else self._settings.poll

    async def _spread_messages(self) -> int:
        async def work(tx: Tx) -> int:
            new = await messages.take_new(tx, self._settings.page)
            if new:
                wanting = await messages.lock_sinks(tx, sorted({one.scope_id for one in new}))
                await messages.put_deliveries(tx, list(_wanted(wanting, new)))
            return len(new)

        return await self._engine.database.promise("spread", work)

    async def _spread_events(self, behind: Sequence[Follower]) -> bool:
        """Whether any of them may have more."""
        places = [Place(one.scope_id, None, one.position) for one in behind]
        pages = await feed.after(self._engine.database, places, self._settings.page)
        more = False
        for follower, page in zip(behind, pages, strict=True):
            if page.bounds.minimum > follower.position + 1:
                log.error("sink.missed_events", sink_id=ids.show("sink", follower.sink_id))
            is_full = len(page.fed) == self._settings.page
            reached = page.fed[-1].position if is_full else page.bounds.head
            await self._advance(follower, page.fed, reached)
            more |= is_full
        return more

    async def _advance(self, follower: Follower, fed: Sequence[Fed], reached: int) -> None:
        new = [_as_message(follower.scope_id, one) for one in fed if one.event is not None]

        async def work(tx: Tx) -> bool:
            if not await messages.advance(tx, follower, reached):
                return False
            if wanted := list(_wanted([follower], new)):
                await messages.put_deliveries(tx, wanted)
            return True

        await self._engine.database.promise("spread", work)

    # ---- sending ---------------------------------------------------------------------------

    async def _send_round(self) -> timedelta:
        if len(self._under_way) >= self._settings.at_once:
            self._room.clear()
            await self._room.wait()
        taken = await self.take()
        for one in taken:
            task = asyncio.create_task(self._deliver(one))
            self._under_way[task] = one
            task.add_done_callback(self._over)
        return timedelta(0) if taken else self._settings.poll

    def _over(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self._room.set()

    async def take(self) -> list[Taken]:
        """Takes what is due and has room, under a lease."""
        token = ids.new_token()
        busy: Counter[tuple[str, uuid.UUID]] = Counter(
            (one.delivery.message.scope_id, one.delivery.sink_id)
            for one in self._under_way.values()
        )

        async def work(tx: Tx) -> list[Taken]:
            return await messages.take(
                tx,
                token,
                self._settings.lease,
                per_sink=self._settings.per_sink,
                limit=self._settings.at_once - len(self._under_way),
                under_way=dict(busy),
            )

        return await self._engine.database.promise("take", work, one_statement=True)

    async def _deliver(self, taken: Taken) -> None:
        outcome = await self._send(taken)
        try:
            await self._engine.database.promise("ack", lambda tx: self._mark(tx, taken, outcome))
        except (EarnestError, asyncpg.PostgresError, *LOST) as error:
            # It is sent again when its lease is over.
            log.warning("delivery.not_marked", error=str(error), **_named(taken))

    async def _send(self, taken: Taken) -> Outcome:
        kind = taken.delivery.sink_kind
        if kind not in self._senders:
            self._senders[kind] = make_sender(kind, self._engine)
        reach("deliver.before")
        try:
            outcome = await self._senders[kind].send(taken, self._settings.timeout.total_seconds())
        except Exception as error:
            log.exception("delivery.broken", **_named(taken))
            outcome = Outcome(arrived=False, error=type(error).__name__)
        reach("deliver.after")
        self._engine.metrics.deliveries.add(kind, "arrived" if outcome.arrived else "failed")
        if not outcome.arrived:
            log.info("delivery.failed", error=outcome.error, **_named(taken))
        return outcome

    async def _mark(self, tx: Tx, taken: Taken, outcome: Outcome) -> bool:
        if outcome.arrived:
            return await messages.ack(tx, taken, outcome.status)
        delivery = taken.delivery
        if outcome.gone or delivery.attempts >= self._settings.most_attempts:
            buried = await messages.bury(tx, taken, outcome.status, outcome.error)
            if buried and outcome.gone:
                why = f"the webhook answered {outcome.status}"
                await sinks.disable(tx, delivery.message.scope_id, delivery.sink_id, why)
            return buried
        wait = self._settings.wait(delivery.attempts, outcome.wait)
        return await messages.put_off(tx, taken, wait, outcome.status, outcome.error)

    # ---- pruning ---------------------------------------------------------------------------

    async def prune(self) -> timedelta:
        """Removes a few rows whose time is over; returns how long to wait for more."""
        settings = self._settings
        pruned = [
            await self._engine.database.promise("prune", work)
            for work in (
                lambda tx: messages.prune(tx, settings.kept, _PRUNED),
                lambda tx: inbox.prune(tx, settings.entries_kept, _PRUNED),
            )
        ]
        return timedelta(0) if _PRUNED in pruned else settings.prune_every


def wants(patterns: Iterable[str], type_: str) -> bool:
    """Whether one of the patterns is the type, or its beginning and a `*`."""
    return any(
        type_ == one or (one.endswith("*") and type_.startswith(one[:-1])) for one in patterns
    )


def _wanted(followers: Iterable[Follower], new: Sequence[Message]) -> Iterable[NewDelivery]:
    for follower in followers:
        for message in new:
            if message.scope_id == follower.scope_id and wants(follower.types, message.type):
                payload = canonical.encode(message.payload)
                yield NewDelivery(follower.sink_id, ids.new_id(), message, payload)


def _as_message(scope_id: str, fed: Fed) -> Message:
    event = fed.event
    assert event is not None, "those that are gone were left out"
    return Message(
        scope_id, ids.event_message_id(event.run_id, event.seq), event.type, event.run_id,
        event.seq, event.payload, event.created_at,
    )  # fmt: skip


def _named(taken: Taken) -> dict[str, object]:
    """Which delivery: never what is in it, nor where to."""
    return {
        "delivery_id": ids.show("dlv", taken.delivery.delivery_id),
        "sink_id": ids.show("sink", taken.delivery.sink_id),
        "attempts": taken.delivery.attempts,
    }

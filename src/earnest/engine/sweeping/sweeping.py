"""Sweeping: one sweep from its taking to its end.

    take ─▶ list ─▶ (something seems missing: list again ─▶ ask) ─▶ end
              └─ the list breaks off ─▶ incomplete

Whoever takes a sweep holds it under a lease and renews it meanwhile; each page is written under the
token of it, with how far it is. One whose sweeper died is taken by another and begun anew: what was
written is the same when it is written again. What may be concluded stands in `judging.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from earnest.domain import ids
from earnest.domain.errors import EarnestError
from earnest.domain.operation import LookupAnswer, OperationState, Recovery
from earnest.domain.sweep import (
    DifferenceKind,
    NewDifference,
    Stage,
    Sweep,
    SweepCounts,
    SweepState,
    Why,
)
from earnest.engine.operations import reconciling
from earnest.engine.process.effects import Effect
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.engine.sweeping.judging import Frame, Item, Judged, judge
from earnest.engine.sweeping.listing import PAGE, ListBroken, pages
from earnest.store import operations, sweeps
from earnest.store.database import LOST, Tx
from earnest.store.sweeps import Held, Unlisted

log = get_logger("earnest.sweeping")

_FORGOTTEN = 5000


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """`lag`: how far behind a provider's list may be, where its effect has no `absent_after`;
    `skew`: how far its clock may be off; `most_takes`: how often a sweep is begun anew."""

    poll: timedelta = timedelta(seconds=5)
    lease: timedelta = timedelta(seconds=30)
    lag: timedelta = timedelta(minutes=5)
    skew: timedelta = timedelta(minutes=5)
    page: int = PAGE
    most_takes: int = 5

    def lag_of(self, effect: Effect[Any, Any]) -> timedelta:
        found = effect.terms().absent_after
        return self.lag if found is None else found


class _Order:
    """Whether a list has come in the order of time so far. Only such a list is left when it has
    come to what is not judged: with a busy provider it has no end."""

    def __init__(self) -> None:
        self.rises = True
        self._last: datetime | None = None

    def note(self, page: Sequence[Item]) -> None:
        for item in page:
            self.rises = self.rises and (self._last is None or self._last <= item.listed.at)
            self._last = item.listed.at


class NoLongerHeld(Exception):
    """Somebody else has taken the sweep."""


class Sweeping:
    """One sweep that was taken; `run` it once."""

    def __init__(self, engine: Engine, held: Held, settings: SweepSettings) -> None:
        effect = engine.effect(held.sweep.effect)
        assert effect is not None, "only what is known here is taken"
        assert held.sweep.asked_at is not None, "set by taking"
        self._engine = engine
        self._held = held
        self._settings = settings
        self._effect = effect
        self._settled_by = held.sweep.asked_at - settings.lag_of(effect)
        self._frame = Frame(
            held.sweep.scope_id,
            effect,
            held.sweep.since,
            held.sweep.asked_at + settings.skew,
            self._settled_by,
            settings.skew,
        )
        self._counts = SweepCounts()
        self._listed_to: datetime | None = None
        self._stage = Stage.LISTING

    async def run(self) -> None:
        """To its end; handed back if it is cancelled. Raises what the database raises: then it is
        taken again after its lease."""
        course = asyncio.create_task(self._course())
        keeper = asyncio.create_task(self._keep())
        try:
            await asyncio.wait({course, keeper}, return_when=asyncio.FIRST_COMPLETED)
            if course.done():
                await course
        except NoLongerHeld:
            log.info("sweep.outrun", sweep_id=self._shown)
        except asyncio.CancelledError:
            await _ended(course, keeper)
            await self._hand_back()
            raise
        finally:
            await _ended(course, keeper)

    @property
    def _shown(self) -> str:
        return ids.show("sweep", self._held.sweep.sweep_id)

    async def _keep(self) -> None:
        """Renews the lease; ends when it is lost."""
        while True:
            await asyncio.sleep(self._settings.lease.total_seconds() / 3)
            renewed = await self._engine.database.promise(
                "sweep",
                lambda tx: sweeps.renew(tx, self._held, self._settings.lease),
                one_statement=True,
            )
            if not renewed:
                return

    async def _hand_back(self) -> None:
        try:
            await self._engine.database.promise(
                "sweep", lambda tx: sweeps.hand_back(tx, self._held), patience=2
            )
        except (EarnestError, asyncpg.PostgresError, *LOST) as error:
            log.info("sweep.left", sweep_id=self._shown, error=str(error))

    # ---- its course ------------------------------------------------------------------------

    async def _course(self) -> None:
        if self._held.sweep.takes > self._settings.most_takes:
            why = f"it was begun {self._settings.most_takes} times, and its sweeper ended each time"
            await self._end(SweepState.INCOMPLETE, why)
            return
        await self._forget(sweeps.forget_seen)
        await self._forget(sweeps.forget_sightings)
        try:
            await self._list(Stage.LISTING)
            if await self._seems_missing():
                await self._list(Stage.LISTING_AGAIN)
        except ListBroken as broken:
            log.warning("sweep.incomplete", sweep_id=self._shown, error=str(broken))
            await self._end(SweepState.INCOMPLETE, str(broken))
            return
        await self._judge_missing()
        await self._end(SweepState.COMPLETE, None)

    async def _list(self, stage: Stage) -> None:
        self._stage, self._counts, self._listed_to = stage, SweepCounts(), None
        since = self._frame.since - self._settings.skew
        async with aclosing(pages(self._effect, since, self._settings.page)) as listed:
            order = _Order()
            async for whole in listed:
                page = [item for item in whole if item.listed.at <= self._frame.until]
                order.note(whole)
                if not page and order.rises:
                    return
                await self._compare(page)

    async def _compare(self, page: Sequence[Item]) -> None:
        settled = await self._settle(page)
        judged = await judge(self._engine.database, self._frame, page)
        for item in page:
            self._listed_to = max(item.listed.at, self._listed_to or item.listed.at)
        self._counts = judged.counted(self._counts, len(page), settled)
        await self._write(judged)

    async def _settle(self, page: Sequence[Item]) -> int:
        """Doubts that the page settles; returns how many. They are judged afterwards."""
        named = {item.operation_id: item for item in reversed(page) if item.operation_id}
        known = await sweeps.recorded(self._engine.database, self._frame.scope_id, [*named])
        count = 0
        for operation_id, found in known.items():
            operation = found.operation
            if operation.state is OperationState.UNKNOWN and operation.kind == self._effect.kind:
                receipt = named[operation_id].listed.receipt
                if receipt is not None:
                    await reconciling.take_as_found(self._engine, operation, receipt, "sweep")
                elif operation.recovery is Recovery.LOOKUP:
                    await reconciling.ask(self._engine, operation.scope_id, operation_id)
                after = await operations.find(
                    self._engine.database, operation.scope_id, operation_id
                )
                count += after is not None and after.state is OperationState.SUBMITTED
        return count

    # ---- what is missing -------------------------------------------------------------------

    async def _missing(self) -> AsyncGenerator[list[Unlisted], None]:
        after: Unlisted | None = None
        while True:
            page = await sweeps.unlisted(
                self._engine.database, self._held, self._settled_by, after, self._settings.page
            )
            if page:
                yield page
            if len(page) < self._settings.page:
                return
            after = page[-1]

    async def _seems_missing(self) -> bool:
        """Whether there is anything new: what an earlier sweep was sure of needs no second list."""
        async with aclosing(self._missing()) as missing:
            async for page in missing:
                if not all(one.known for one in page):
                    return True
        return False

    async def _judge_missing(self) -> None:
        if self._effect.has_own("lookup"):
            self._stage = Stage.ASKING
        async with aclosing(self._missing()) as missing:
            async for page in missing:
                await self._report_missing(page)

    async def _report_missing(self, page: Sequence[Unlisted]) -> None:
        judged, unsure = Judged(), []
        for one in page:
            answer = LookupAnswer.ABSENT if one.known else await self._ask(one)
            if answer is LookupAnswer.ABSENT:
                found = _as_difference(one)
                judged.found[found.kind, found.subject] = found
            elif answer is not LookupAnswer.FOUND:
                unsure.append(str(one.operation_id))
        self._counts = replace(self._counts, unjudged=self._counts.unjudged + len(unsure))
        await self._write(judged, unsure)

    async def _ask(self, one: Unlisted) -> LookupAnswer:
        """What the provider says if it can be asked; else the two lists have said it."""
        if not self._effect.has_own("lookup"):
            return LookupAnswer.ABSENT
        scope_id = self._frame.scope_id
        operation = await operations.find(self._engine.database, scope_id, one.operation_id)
        assert operation is not None, "operations are not removed"
        self._counts = replace(self._counts, asked=self._counts.asked + 1)
        return await reconciling.ask_only(operation, self._effect)

    # ---- writing ---------------------------------------------------------------------------

    async def _write(self, judged: Judged, unsure: Sequence[str] = ()) -> None:
        """A page with how far it is, if the sweep is still ours. Raises `NoLongerHeld`."""
        lease, counts, held = self._settings.lease, self._counts, self._held

        async def work(tx: Tx) -> bool:
            if not await sweeps.advance(tx, held, lease, self._stage, counts, self._listed_to):
                return False
            if judged.seen:
                await sweeps.see(tx, held, sorted(judged.seen))
            if judged.found:
                await sweeps.report(tx, held, list(judged.found.values()))
            for kind, subjects in (
                (DifferenceKind.EFFECT_WITHOUT_RECORD, sorted(judged.unjudged)),
                (DifferenceKind.RECORD_WITHOUT_EFFECT, list(unsure)),
            ):
                if subjects:
                    await sweeps.see_known(tx, held, kind, subjects)
            return True

        await self._promise(work)

    async def _end(self, state: SweepState, why: str | None) -> None:
        async def work(tx: Tx) -> bool:
            if not await sweeps.end(tx, self._held, state, why):
                return False
            if state is SweepState.COMPLETE:
                await sweeps.vanish(tx, self._held)
            return True

        await self._forget(sweeps.forget_seen)
        await self._promise(work, reread=self._has_ended)
        self._engine.metrics.sweeps.add(self._effect.kind, state.value)

    async def _has_ended(self, tx: Tx) -> bool | None:
        sweep = await sweeps.find(self._engine.database, *self._held.key)
        return True if sweep is not None and sweep.final else None

    async def _forget(self, some: Callable[[Tx, Held, int], Awaitable[int]]) -> None:
        """What earlier listings of this sweep have named, or what it found in them."""

        async def work(tx: Tx) -> int:
            return await some(tx, self._held, _FORGOTTEN)

        while await self._engine.database.promise("prune", work) == _FORGOTTEN:
            pass

    async def _promise(self, work: Any, reread: Any = None) -> None:
        if not await self._engine.database.promise("sweep", work, reread=reread):
            raise NoLongerHeld


def _as_difference(one: Unlisted) -> NewDifference:
    return NewDifference(
        kind=DifferenceKind.RECORD_WITHOUT_EFFECT,
        why=Why.NOT_LISTED,
        subject=str(one.operation_id),
        happened_at=one.begun_at,
        operation_id=one.operation_id,
        listed_id=None,
        external_ref=one.external_ref,
    )


async def _ended(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def listable(engine: Engine) -> list[str]:
    """The effects that this process can list."""
    known = ((kind, engine.effect(kind)) for kind in engine.effect_kinds())
    return [kind for kind, one in known if one is not None and one.has_own("list_since")]


async def take_and_sweep(
    engine: Engine, settings: SweepSettings, only: Sweep | None = None
) -> bool:
    """Takes a sweep that waits, or whose sweeper is gone, and makes it; false where there is
    none."""
    effects = listable(engine)
    if not effects:
        return False
    wanted = None if only is None else only.sweep_id

    async def work(tx: Tx) -> Held | None:
        return await sweeps.take(tx, effects, settings.lease, wanted)

    held = await engine.database.promise("sweep", work, one_statement=True)
    if held is None:
        return False
    await Sweeping(engine, held, settings).run()
    return True

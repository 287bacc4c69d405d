"""Group commit: what comes together is stored together, and each hears of its own item."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.domain.errors import DatabaseUnavailable
from earnest.engine.runs.grouping import Group


class Store:
    """Doubles numbers; refuses `bad` ones, is away for `away`, and can be held."""

    def __init__(self, bad: set[int] | None = None, *, away: bool = False, most: int = 500) -> None:
        self.bad, self.away = bad or set(), away
        self.batches: list[list[int]] = []
        self.free, self.flushing = asyncio.Event(), asyncio.Event()
        self.free.set()
        self.group: Group[int, int] = Group(self.flush, most)

    async def flush(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.flushing.set()
        await self.free.wait()
        if self.away:
            raise DatabaseUnavailable("gone")
        for item in items:
            if item in self.bad:
                raise ValueError(f"{item} is bad")
        return [2 * item for item in items]

    async def put_all(self, items: Sequence[int]) -> list[int | BaseException]:
        return await asyncio.gather(*map(self.group.put, items), return_exceptions=True)


async def test_what_comes_in_one_moment_is_stored_at_once() -> None:
    store = Store()
    assert await store.put_all([1, 2, 3]) == [2, 4, 6]
    assert store.batches == [[1, 2, 3]]


async def test_what_comes_during_a_flush_joins_the_next() -> None:
    store = Store()
    store.free.clear()
    tasks = [asyncio.create_task(store.group.put(1))]
    await store.flushing.wait()
    tasks += [asyncio.create_task(store.group.put(item)) for item in (2, 3)]
    await asyncio.sleep(0)
    store.free.set()
    assert await asyncio.gather(*tasks) == [2, 4, 6]
    assert store.batches == [[1], [2, 3]]


async def test_no_more_go_together_than_allowed() -> None:
    store = Store(most=2)
    assert await store.put_all([1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert store.batches == [[1, 2], [3, 4], [5]]


@given(st.lists(st.integers(0, 20), min_size=1, unique=True), st.sets(st.integers(0, 20)))
def test_a_bad_item_fails_alone(items: list[int], bad: set[int]) -> None:
    async def play() -> None:
        store = Store(bad)
        for item, answer in zip(items, await store.put_all(items), strict=True):
            if item in bad:
                assert str(answer) == f"{item} is bad"
            else:
                assert answer == 2 * item

    asyncio.run(play())


async def test_a_database_that_is_away_is_told_to_all_and_asked_once() -> None:
    store = Store(away=True)
    answers = await store.put_all([1, 2, 3])
    assert all(isinstance(answer, DatabaseUnavailable) for answer in answers)
    assert store.batches == [[1, 2, 3]]


async def test_after_a_failure_the_group_goes_on() -> None:
    store = Store(bad={1})
    with pytest.raises(ValueError, match="1 is bad"):
        await store.group.put(1)
    assert await store.group.put(2) == 4


async def test_one_who_stops_waiting_takes_nothing_from_the_others() -> None:
    store = Store()
    store.free.clear()
    impatient = asyncio.create_task(store.group.put(1))
    patient = asyncio.create_task(store.group.put(2))
    await store.flushing.wait()
    impatient.cancel()
    await asyncio.sleep(0)
    store.free.set()
    assert await patient == 4
    assert store.batches == [[1, 2]]
    assert impatient.cancelled()

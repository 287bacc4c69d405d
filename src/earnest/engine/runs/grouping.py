"""Group commit: what several attempts want to store in the same moment goes in one statement.

The first item that comes starts a flush; what comes while that one is under way joins the next.
A permanent error splits the group until the one bad item fails alone, so that nobody pays for
another's mistake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from earnest.domain.errors import DatabaseUnavailable

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


class Group(Generic[ItemT, AnswerT]):
    """`flush` stores items and returns one answer each, in order. At most `most` go together."""

    def __init__(
        self, flush: Callable[[Sequence[ItemT]], Awaitable[Sequence[AnswerT]]], most: int = 500
    ) -> None:
        self._flush = flush
        self._most = most
        self._waiting: list[tuple[ItemT, asyncio.Future[AnswerT]]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def put(self, item: ItemT) -> AnswerT:
        """Stores the item, together with others; returns its own answer or raises its own error."""
        return await self.join(item)

    def join(self, item: ItemT) -> asyncio.Future[AnswerT]:
        """As `put`, for who is told of the answer."""
        answer: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._drain())
        return answer

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            await self._store(batch)

    async def _store(self, batch: list[tuple[ItemT, asyncio.Future[AnswerT]]]) -> None:
        try:
            answers = await self._flush([item for item, _ in batch])
        except Exception as error:
            if len(batch) == 1 or isinstance(error, DatabaseUnavailable):
                for _, future in batch:
                    _fail(future, error)
                return
            middle = len(batch) // 2
            await self._store(batch[:middle])
            await self._store(batch[middle:])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def _fail(future: asyncio.Future[AnswerT], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

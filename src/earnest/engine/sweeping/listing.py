"""Listing: a provider's list as pages of things that can be compared.

The list is the effect's own code and may be of any length: no more than a page of it is held. What
it does wrong ends the list with a reason, and nobody is said to be missing in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime
from typing import Any, cast

from earnest.domain.kept_error import kept_text
from earnest.engine.process.effects import Effect, Listed
from earnest.engine.process.foreign_code import foreign_code, told_of
from earnest.engine.process.typed_json import misfit
from earnest.engine.sweeping.judging import Item, read_item

PAGE = 200
PAGE_SECONDS = 2.0


class ListBroken(Exception):
    """The list did not come to its end; its text says why."""


async def pages(
    effect: Effect[Any, Any], since: datetime, most: int = PAGE
) -> AsyncGenerator[list[Item], None]:
    """The list from `since` on, in pages of `most`, or of what came within a moment. Each next
    thing may take as long as one call. Raises `ListBroken`."""
    given = _begin(effect, since)
    seconds = effect.terms().timeout.total_seconds()
    page: list[Item] = []
    try:
        began = time.monotonic()
        while (item := await _next(effect, given, seconds)) is not None:
            page.append(item)
            if len(page) >= most or time.monotonic() - began > PAGE_SECONDS:
                yield page
                page, began = [], time.monotonic()
        if page:
            yield page
    finally:
        await _close(given)


def _begin(effect: Effect[Any, Any], since: datetime) -> AsyncIterator[Listed]:
    try:
        with foreign_code:
            given: object = effect.list_since(since)
            if inspect.iscoroutine(given):
                given.close()
                raise TypeError("it is a coroutine and yields nothing")
            return aiter(cast("AsyncIterator[Listed]", given))
    except Exception as error:
        raise ListBroken(
            f"list_since of {effect.kind} gives no list: {kept_text(told_of(error))}; write it as "
            "an async generator"
        ) from error


async def _next(
    effect: Effect[Any, Any], given: AsyncIterator[Listed], seconds: float
) -> Item | None:
    try:
        async with asyncio.timeout(seconds):
            with foreign_code:
                listed = await anext(given, None)
    except TimeoutError as error:
        raise ListBroken(f"the provider did not go on with its list for {seconds:g} s") from error
    except Exception as error:
        raise ListBroken(kept_text(told_of(error))) from error
    if listed is None:
        return None
    if not isinstance(listed, Listed):
        raise ListBroken(f"list_since of {effect.kind} gives {type(listed).__name__}, not Listed")
    try:
        with foreign_code:
            return read_item(effect, listed)
    except Exception as error:
        raise ListBroken(f"what was listed does not fit {effect.kind}: {_why(error)}") from error


def _why(error: Exception) -> str:
    return kept_text(misfit(error) if isinstance(error, ValueError) else told_of(error))


async def _close(given: AsyncIterator[Listed]) -> None:
    """A list that was left early lets go of what it holds."""
    close = getattr(given, "aclose", None)
    if close is not None:
        with contextlib.suppress(Exception), foreign_code:
            await close()

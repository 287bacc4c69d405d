"""Apps of one kind, `work`, for tests that are about what its handler does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from earnest import App, Context, PlainContext

Handler = Callable[[Context], Awaitable[Any]]
PlainHandler = Callable[[PlainContext], Any]


def work(handler: Handler, **terms: Any) -> App:
    """Failed attempts are tried again at once, unless `retry_first` is given."""
    app = App("work")

    @app.run("work", **{"retry_first": "0s", **terms})
    async def work(ctx: Context, value: Any) -> Any:
        return await handler(ctx)

    return app


def plain_work(handler: PlainHandler, **terms: Any) -> App:
    """As `work`, with a handler that is no coroutine."""
    app = App("work")

    @app.run("work", **{"retry_first": "0s", **terms})
    def work(ctx: PlainContext, value: Any) -> Any:
        return handler(ctx)

    return app


def counted(result: Any = 1) -> tuple[list[tuple[Any, ...]], Callable[..., Awaitable[Any]]]:
    """A function, and the arguments of each of its calls."""
    calls: list[tuple[Any, ...]] = []

    async def count(*arguments: Any) -> Any:
        calls.append(arguments)
        return result

    return calls, count


def fails_once(ctx: Context | PlainContext) -> None:
    """The end of a first attempt."""
    if ctx.attempt == 1:
        raise RuntimeError("the first attempt fails, as asked")

"""Plain functions beside the event loop, each in a thread of its own.

Not a pool: a handler that waits for its own step would wait for a place in the pool that it holds
itself. And daemon threads: what a stopped attempt leaves behind does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from earnest.domain.foreign_errors import said_by

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Calls the function in a thread and returns or raises what it does. Cancelling stops the
    waiting, not the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function, *args, **kwargs)
        except StopIteration as error:
            raised = RuntimeError(f"a plain function raised StopIteration: {said_by(error)}")
            _hand_over(loop, future, raised, None)
        except BaseException as error:
            _hand_over(loop, future, error, None)
        else:
            _hand_over(loop, future, None, result)

    threading.Thread(target=work, name=f"earnest-{function!r:.40}", daemon=True).start()
    return await future


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    error: BaseException | None,
    result: Any,
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop has ended; nobody waits any more
        loop.call_soon_threadsafe(settle)

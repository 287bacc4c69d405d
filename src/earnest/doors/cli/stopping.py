"""How a process is asked to stop: SIGTERM or SIGINT once to drain, a second time to end at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
ORPHANS_DRAIN = 1.0


class Stopping:
    """Listens to the signals while it is entered, in a running event loop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._hurries: list[Callable[[], None]] = []
        self._hurried = False

    def when_hurried(self, act: Callable[[], None]) -> None:
        """`act` is called at the second signal; at once if that has come already."""
        self._hurries.append(act)
        if self._hurried:
            act()

    def __enter__(self) -> Stopping:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _hear(self) -> None:
        if self.asked.is_set():
            self._hurried = True
            for act in self._hurries:
                act()
        self.asked.set()


def stop_with_stdin() -> None:
    """From now on the end of standard input is a SIGTERM, and soon another one: a process whose
    starter holds the other end of a pipe does not outlive it for long, however that ends."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHANS_DRAIN)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="earnest-stdin", daemon=True).start()

"""The demo's supervisor: holds the database open, starts the parts, says where they are, and keeps
them running until it is asked to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from earnest.apps.demo.folder import DemoFolder, Tokens
from earnest.apps.demo.staging import SCOPE, stage
from earnest.apps.demo.supervising import Kept
from earnest.apps.demo.telling import tell_again, tell_what_to_try, tell_where
from earnest.domain.errors import SettingInvalid
from earnest.doors.cli import exits, logs
from earnest.doors.cli.parts import Parts, Told
from earnest.doors.cli.stopping import Stopping

APP = "earnest.apps.demo.app:app"
DRAIN = 5.0
_GRACE = 5.0
_KILLED_ONES_END_IN = 10.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for. `shows`: with the tour; `stays`: until it is stopped."""

    home: Path
    database_url: str | None
    host: str
    port: int
    simulator_port: int
    fresh: bool
    restarts: bool
    shows: bool
    stays: bool
    log: logs.LogFormat


async def run(parts: Parts, asked: Asked) -> bool:
    """Runs the demo until it is stopped, or until the tour is over. False: the tour failed."""
    logs.configure(asked.log, level=logging.WARNING)
    if asked.fresh and asked.database_url:
        raise SettingInvalid(
            "--fresh wipes a folder; empty the database at --database-url yourself"
        )
    folder = DemoFolder(asked.home)
    if folder.is_new:
        _find_ports_free(parts, asked)  # before anything is made
    with folder.held(), Stopping() as stopping:
        port = await _free_port(parts, asked, _KILLED_ONES_END_IN if folder.was_killed else 0.0)
        with folder.begun(fresh=asked.fresh):
            return await _run_on(parts, asked, Demo(asked, port, folder), stopping)


async def _run_on(parts: Parts, asked: Asked, demo: Demo, stopping: Stopping) -> bool:
    stopping.when_hurried(demo.hurry)
    told = Told(demo.folder.home, asked.database_url, (APP,), makes=True)
    async with demo.simulating(), parts.open(told) as opened:
        demo.tokens = await stage(opened.engine, demo.folder)
        async with demo.running(stopping):
            return await _show_and_wait(demo, asked, stopping)


async def _free_port(parts: Parts, asked: Asked, patience: float) -> int:
    """The port to serve on, free now. One that a killed demo's server still holds is waited for."""
    until = asyncio.get_running_loop().time() + patience
    while True:
        try:
            return _find_ports_free(parts, asked)
        except SettingInvalid:
            if asyncio.get_running_loop().time() >= until:
                raise
        await asyncio.sleep(0.1)


def _find_ports_free(parts: Parts, asked: Asked) -> int:
    """The port to serve on. Raises `SettingInvalid` unless it, and that of the simulator, can be
    taken now."""
    with ExitStack() as taken:
        if asked.simulator_port:
            taken.enter_context(closing(_take_simulator_port(parts, asked.simulator_port)))
        listener = taken.enter_context(closing(parts.listen(asked.host, asked.port)))
        port: int = listener.getsockname()[1]
        return port


def _take_simulator_port(parts: Parts, port: int) -> socket.socket:
    try:
        return parts.listen("127.0.0.1", port)
    except SettingInvalid as error:
        raise SettingInvalid(
            f"port {port} on 127.0.0.1 is not free for the simulator; choose another with "
            "--simulator-port or EARNEST_SIMULATOR_PORT"
        ) from error


class Demo:
    """The processes of one demo."""

    def __init__(self, asked: Asked, port: int, folder: DemoFolder) -> None:
        self.folder = folder
        self.tokens: Tokens = {}
        self.asked = asked
        self._was_ready = False
        self._tasks: list[asyncio.Task[None]] = []
        self.simulator = self._kept("simulator", ["simulate", "--port", str(asked.simulator_port)])
        words = ["--home", str(folder.home), "--app", APP, "--drain", str(DRAIN)]
        words += ["--log", asked.log.value]
        where = ["--host", asked.host, "--port", str(port)]
        self.server = self._kept("server", ["serve", "--no-worker", *where, *words])
        self.worker = self._kept("worker", ["worker", *words])

    @property
    def url(self) -> str:
        return str(self.server.facts["url"])

    @property
    def simulator_url(self) -> str:
        return str(self.simulator.facts["url"])

    @asynccontextmanager
    async def simulating(self) -> AsyncIterator[None]:
        """The simulator is being started inside; it outlives those who call it."""
        self._tasks.append(asyncio.create_task(self.simulator.run()))
        try:
            yield
        finally:
            await self.simulator.stop(_GRACE)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @asynccontextmanager
    async def running(self, stopping: Stopping) -> AsyncIterator[None]:
        """Everything is ready inside, or a stop was asked. Raises `NotStarted`."""
        parts = [self.server, self.worker]
        try:
            await self._until_ready([self.simulator], stopping)
            if not stopping.asked.is_set():
                self._settle_simulator()
                self._tasks += [asyncio.create_task(kept.run()) for kept in parts]
                await self._until_ready(parts, stopping)
            yield
        finally:
            self.folder.withdraw()
            await asyncio.gather(*(kept.stop(DRAIN + _GRACE) for kept in parts))

    async def _until_ready(self, together: list[Kept], stopping: Stopping) -> None:
        """Until these are ready, or a stop is asked. Raises what ended one of the tasks."""
        ready = asyncio.create_task(_each_ready(together))
        stop = asyncio.create_task(stopping.asked.wait())
        try:
            await asyncio.wait([ready, stop, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in self._tasks:
                if task.done():
                    task.result()
        finally:
            ready.cancel()
            stop.cancel()
            await asyncio.gather(ready, stop, return_exceptions=True)

    def _kept(self, name: str, words: list[str]) -> Kept:
        return Kept(
            name,
            [*words, "--json", "--stop-with-stdin"],
            variables=os.environ,
            log_file=self.folder.log(name),
            on_ready=self._hear_ready,
            restarts=self.asked.restarts,
        )

    def _settle_simulator(self) -> None:
        """It keeps the port that it took, and the others learn where it is."""
        self.simulator.words[2] = self.simulator_url.rpartition(":")[2]
        where = {"EARNEST_SIMULATOR_URL": self.simulator_url}
        if self.asked.database_url:
            where["EARNEST_DATABASE_URL"] = self.asked.database_url
        for kept in (self.server, self.worker):
            kept.variables.update(where)
        self.folder.keep_variables({"EARNEST_APP": APP, "EARNEST_SCOPE": SCOPE, **where})

    def _hear_ready(self, kept: Kept) -> None:
        if all(one.ready.is_set() for one in (self.simulator, self.server, self.worker)):
            self._publish()
            if self._was_ready:
                tell_again(kept.name, kept.pid)
            self._was_ready = True

    def _publish(self) -> None:
        self.folder.publish(
            {
                "url": self.url,
                "simulator_url": self.simulator_url,
                "pids": {"server": self.server.pid, "worker": self.worker.pid, "node": None},
                "scopes": {name: {"tokens": tokens} for name, tokens in self.tokens.items()},
            }
        )

    def hurry(self) -> None:
        """Asks all processes once more to end."""
        for kept in (self.server, self.worker, self.simulator):
            kept.hurry()


async def _each_ready(together: list[Kept]) -> None:
    for kept in together:
        await kept.ready.wait()


async def _show_and_wait(demo: Demo, asked: Asked, stopping: Stopping) -> bool:
    if stopping.asked.is_set():
        return True
    tell_where(demo.url, demo.folder.home)
    went_well = await _show(demo, stopping) if asked.shows else True
    if not asked.stays:
        return went_well
    if not stopping.asked.is_set():
        tell_what_to_try(demo.folder.home)
    await stopping.asked.wait()
    return True


async def _show(demo: Demo, stopping: Stopping) -> bool:
    """The tour, unless it is stopped; what went wrong is told in one line."""
    from earnest.apps.demo.tour import Tour

    tour = asyncio.create_task(Tour(demo).go())
    stop = asyncio.create_task(stopping.asked.wait())
    await asyncio.wait({tour, stop}, return_when=asyncio.FIRST_COMPLETED)
    tour.cancel()
    stop.cancel()
    _, error = await asyncio.gather(stop, tour, return_exceptions=True)
    if isinstance(error, Exception):
        exits.tell(error)
    return error is None

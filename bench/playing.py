"""One measurement of one system: a fresh database, its script, and a look at what was done."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from bench.systems import System
from earnest.apps.bench.database import BenchDatabase
from earnest.apps.bench.looking import seconds_to_next_look

_LONGEST = 180.0


class Failed(Exception):
    """A system's script did not do its part."""


@dataclass(frozen=True)
class Player:
    """One system, with the Python that runs it. What its scripts complain about is in `log`."""

    system: System
    python: str
    server: BenchDatabase
    log: Path

    @property
    def database(self) -> BenchDatabase:
        head, _, query = self.server.url.partition("?")
        return BenchDatabase(f"{head.rsplit('/', 1)[0]}/bench_{self.system.name}?{query}")

    async def submit_rate(self, command: str, count: int) -> float:
        """Tasks a second that `submit` or `bulk` takes."""
        await self._begin_anew()
        return await self._call(command, count)

    async def drain_rate(self, fill: str, count: int, workers: int = 1) -> float:
        """Tasks a second from the first one's start until all are seen done."""
        await self._begin_anew()
        await self._call(fill, count)
        # The server looks over tables by itself later; a plan without figures is a bad one.
        await self.database.look_over()
        two = dict(self.system.for_two) if workers > 1 else {}
        async with self.database.connection() as eye, self._workers(workers, two) as started:
            first = await _first_start(started)
            await self._until_done(eye, count, first)
            return count / (time.time() - first)

    async def _begin_anew(self) -> None:
        name = f"bench_{self.system.name}"
        async with self.server.connection() as connection:
            await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            await connection.execute(f"CREATE DATABASE {name}")
            await connection.execute("CHECKPOINT")
        process = await self._start("setup", 0)
        await self._finish(process, "setup")

    async def _call(self, command: str, count: int) -> float:
        told = await self._finish(await self._start(command, count), command)
        rates = [line.split()[2] for line in told.splitlines() if line.startswith("BENCH rate ")]
        if not rates:
            raise Failed(f"{self.system.name} {command} told no rate; see {self.log}")
        return float(rates[-1])

    async def _start(
        self, command: str, count: int, settings: dict[str, str] | None = None
    ) -> Process:
        given = {**self.system.settings, **(settings or {})}
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("EARNEST")},
            **{f"BENCH_{name}": value for name, value in given.items()},
            "BENCH_URL": self.database.url,
        }
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                self.python, self.system.path, command, str(count), env=variables,
                cwd=self.system.path.parent, stdout=PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip

    async def _finish(self, process: Process, command: str) -> str:
        out, _ = await process.communicate()
        if process.returncode:
            raise Failed(f"{self.system.name} {command} failed; see {self.log}")
        return out.decode()

    @asynccontextmanager
    async def _workers(self, count: int, settings: dict[str, str]) -> AsyncIterator[list[Process]]:
        started: list[Process] = []
        try:
            for number in range(count):
                own = {**settings, "WORKER": f"w{number}"}
                started.append(await self._start("worker", 0, own))
            yield started
        finally:
            for process in started:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.communicate()

    async def _until_done(self, eye: asyncpg.Connection, count: int, begun: float) -> None:
        statement, until = self.system.done.format(count=count), time.monotonic() + _LONGEST
        while (done := await eye.fetchval(statement)) < count:
            if time.monotonic() > until:
                raise Failed(f"{self.system.name} did not finish; see {self.log}")
            await asyncio.sleep(seconds_to_next_look(done, count, time.time() - begun))


async def _first_start(workers: list[Process]) -> float:
    """When the first task of all began."""
    told = [asyncio.create_task(_told_first(worker)) for worker in workers]
    try:
        async with asyncio.timeout(_LONGEST):
            done, _ = await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
            return min(task.result() for task in done)
    except TimeoutError:
        raise Failed("no task began") from None
    finally:
        for task in told:
            task.cancel()


async def _told_first(worker: Process) -> float:
    assert worker.stdout is not None, "it is a pipe"
    async for line in worker.stdout:
        if line.startswith(b"BENCH first "):
            return float(line.split()[2])
    raise Failed("a worker ended before its first task")

"""A server in a process of its own, which a test kills and starts again at the same address; the
tokens of its people; and a look into its database."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import asyncpg

from earnest.engine.process import principals, scopes, tokens
from earnest.engine.process.engine import Engine
from earnest.store.database import Database
from tests.doors.cli.program import DEMO, Program, Running

PEOPLE = {
    "member": ["member"],
    "other": ["member"],
    "approver": ["approver"],
    "operator": ["operator"],
    "admin": ["admin"],
}


class House:
    """`words` are what `earnest serve` is started with beside its address."""

    def __init__(self, folder: Path, database_url: str, simulator_url: str = "") -> None:
        variables = {
            "EARNEST_HOME": str(folder / "home"),
            "EARNEST_DATABASE_URL": database_url,
            "EARNEST_APP": DEMO,
            "EARNEST_SIMULATOR_URL": simulator_url or "http://127.0.0.1:9",
            "EARNEST_DRAIN": "0",
            "EARNEST_LOG": "json",
        }
        self.program = Program(folder, variables)
        self.database_url = database_url
        self.tokens: dict[str, str] = {}
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server: Running | None = None
        self._words: tuple[str, ...] = ()
        self._stack = ExitStack()

    async def welcome(self) -> None:
        """Makes the people, and gives each a token."""
        async with Database(self.database_url, size=2, patience=5) as database:
            engine = Engine(database)
            await scopes.ensure_scope(engine, "demo")
            for name, roles in PEOPLE.items():
                await principals.ensure_principal(engine, "demo", name, roles)
                self.tokens[name] = await tokens.issue_token(engine, "demo", name)

    def start(self, *words: str) -> None:
        """Returns when it is ready."""
        self._words = words
        serving = self.program.started("serve", "--port", str(self.port), *words)
        self.server = self._stack.enter_context(serving)

    def died(self) -> None:
        """Returns when it has ended by itself."""
        assert self.server is not None, "started before"
        self.server.wait()

    def kill(self) -> None:
        """SIGKILL."""
        assert self.server is not None, "started before"
        self.server.signal(signal.SIGKILL)
        self.server.wait()

    async def restart(self, *, kill: bool) -> None:
        """By force, or as an operator does it; returns when the next one is ready."""
        assert self.server is not None, "started before"
        if kill:
            self.kill()
        else:
            await asyncio.to_thread(self.server.end)
        await asyncio.to_thread(self.start, *self._words)

    async def count(self, statement: str, *given: Any) -> int:
        """What the database itself says."""
        connection = await asyncpg.connect(self.database_url)
        try:
            return int(await connection.fetchval(statement, *given))
        finally:
            await connection.close()

    def close(self) -> None:
        self._stack.close()


def _free_port() -> int:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port

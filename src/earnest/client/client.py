"""`earnest.Client`: an installation of Earnest, called from another program over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import httpx2

from earnest.client.administration import AdminCalls
from earnest.client.calling import PATIENCE, SILENCE, Caller
from earnest.client.desk import DeskCalls
from earnest.client.files import FileCalls
from earnest.client.runs import RunCalls


class Client(RunCalls, DeskCalls, FileCalls, AdminCalls):
    """Calls the API at `url` as whom `token` stands for.

        async with Client("http://127.0.0.1:8321", token) as client:
            run = await client.submit("refund.process", {"id": 17}, key="order-17")
            output = await client.wait(run.id)

    A call is tried again for `patience` seconds while the server cannot be reached or is busy,
    always with the same key; what was refused is raised at once, as the class out of
    `earnest.domain.errors` that says what it was. A stream that is silent for `silence` seconds is
    taken for dead. `token` may be a function that gives the token of now. `http` is a client of
    `httpx2` with settings of your own (a proxy, certificates); it is closed with this one.

    Iterators that you do not read to their end are best closed: `contextlib.aclosing`.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str],
        *,
        patience: float = PATIENCE,
        silence: float = SILENCE,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        self._caller = Caller(url, token, patience=patience, silence=silence, http=http)

    async def close(self) -> None:
        """Closes its connections. Harmless when repeated."""
        await self._caller.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

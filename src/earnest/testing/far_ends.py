"""The far end of an effect, as the conformance suite needs it: what it really did, and how to make
its next call go wrong. A user writes one for each provider; `SimulatedBank` is one for the
simulator's banks, and an example.
"""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from earnest.testing.simulator import Simulator


class FarEnd(ABC):
    """A provider (a fake, a sandbox, a recording) in the hands of a test."""

    apart: bool = True
    """Whether it remembers outside of this process (behind a socket), so that it knows what a
    process did that was killed. Of one that is not, no deaths are shown."""

    @abstractmethod
    def done(self) -> Sequence[str]:
        """What it really did since the test began, oldest first: of each deed the operation id
        that came along, or an empty text where none did."""

    @abstractmethod
    def lose_reply(self) -> None:
        """The next call is carried out, and its caller never hears of it."""

    @abstractmethod
    def lose_request(self) -> None:
        """The next call is not carried out, and its caller cannot know that: a 500, a reset."""

    @abstractmethod
    def garble_reply(self) -> None:
        """The next call is carried out, and what is answered makes no sense."""

    @abstractmethod
    def refuse(self) -> None:
        """The next call is refused for good, and not carried out."""

    @abstractmethod
    def unreachable(self) -> AbstractContextManager[None]:
        """Meanwhile nobody gets through to it, not even with a question."""

    @abstractmethod
    def failing(self) -> AbstractContextManager[None]:
        """Meanwhile it answers everything, questions too, with an error of its own: a 503."""


class SimulatedBank(FarEnd):
    """One of the simulator's banks. `client` is the httpx (or httpx2) client that the effect uses,
    with the simulator as its `base_url`."""

    def __init__(self, simulator: Simulator, client: Any) -> None:
        self._simulator = simulator
        self._client = client

    def done(self) -> Sequence[str]:
        return [deed["operation_id"] for deed in self._simulator.truth("bank")]

    def lose_reply(self) -> None:
        self._simulator.put_fault("bank", "accept_then_drop")

    def lose_request(self) -> None:
        self._simulator.put_fault("bank", "error_before")

    def garble_reply(self) -> None:
        self._simulator.put_fault("bank", "garbage")

    def refuse(self) -> None:
        self._simulator.put_fault("bank", "refuse")

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        with socket.socket() as held:
            # Bound and not listened on: nobody else answers there, and a connection is refused.
            held.bind(("127.0.0.1", 0))
            with self._moved_to(held.getsockname()[1]):
                yield

    @contextmanager
    def failing(self) -> Iterator[None]:
        with ThreadingHTTPServer(("127.0.0.1", 0), _Failing) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                with self._moved_to(server.server_port):
                    yield
            finally:
                server.shutdown()
                thread.join()

    @contextmanager
    def _moved_to(self, port: int) -> Iterator[None]:
        before = self._client.base_url
        self._client.base_url = f"http://127.0.0.1:{port}"
        try:
            yield
        finally:
            self._client.base_url = before


class _Failing(BaseHTTPRequestHandler):
    """Whatever is asked, the answer is 503."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(503)
        self.end_headers()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing: the test knows."""

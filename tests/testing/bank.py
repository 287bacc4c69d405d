"""A caller of the simulator's banks, over real sockets."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

import httpx2

from earnest.testing.simulator import Simulator

KINDS = ("keyed", "queryable", "opaque")


def new_refund(**fields: Any) -> dict[str, Any]:
    """A refund that no other test asks for."""
    return {
        "operation_id": f"op_{uuid4().hex}",
        "order_id": "order-17",
        "amount": "20.00",
    } | fields


class Bank:
    """Asks for refunds and counts what was really done about them."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self._client = httpx2.Client(base_url=simulator.url, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def ask(self, kind: str, refund: object, *, key: str | None = None) -> httpx2.Response:
        """Ask one of the banks; whatever is answered."""
        headers = {} if key is None else {"Idempotency-Key": key}
        return self._client.post(f"/bank/{kind}/refunds", json=refund, headers=headers)

    def ask_raw(self, kind: str, body: bytes) -> httpx2.Response:
        """Ask with a body that need not be JSON."""
        return self._client.post(f"/bank/{kind}/refunds", content=body)

    def look_up(self, operation_id: str) -> httpx2.Response:
        """Ask the queryable bank about an operation."""
        return self._client.get(f"/bank/queryable/refunds/{operation_id}")

    def deeds(self, refund: dict[str, Any]) -> list[dict[str, Any]]:
        """What the truth log says was done for this operation id."""
        wanted = refund["operation_id"]
        return [deed for deed in self.simulator.truth("bank") if deed["operation_id"] == wanted]

    def send(self, kind: str, refund: dict[str, Any]) -> socket.socket:
        """Send a request over a plain socket, and do not wait for the answer."""
        address = urlsplit(self.simulator.url)
        body = json.dumps(refund).encode()
        head = (
            f"POST /bank/{kind}/refunds HTTP/1.1\r\nHost: bank\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        line = socket.create_connection((address.hostname, address.port), timeout=10)
        line.sendall(head.encode() + body)
        return line

    def wait_until_no_rule_is_left(self) -> None:
        """Return once every fault rule has met its calls: those calls have arrived."""
        while self.simulator.faults():
            pass

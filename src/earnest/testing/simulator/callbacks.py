"""Calling back: a provider tells its caller what it did, signed, and perhaps more than once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx2
from standardwebhooks.webhooks import Webhook

TRIES, PAUSE = 20, 0.25
"""How often a callback is sent that is not answered 2xx, and the seconds between."""


@dataclass(frozen=True)
class CallbackPlace:
    """Where a caller wants to be called, and with which secret."""

    url: str
    secret: str

    @staticmethod
    def of(headers: Mapping[str, str]) -> CallbackPlace | None:
        url, secret = headers.get("callback-url"), headers.get("callback-secret")
        return CallbackPlace(url, secret) if url and secret else None


@dataclass
class Callbacks:
    """Sends them beside the answers of calls."""

    _sending: set[asyncio.Task[None]] = field(default_factory=set)

    def send(
        self, place: CallbackPlace, message_id: str, told: Mapping[str, str], times: int
    ) -> None:
        """Sends the same message so often, one beside the other."""
        body = json.dumps({**told})
        for _ in range(times):
            task = asyncio.create_task(_deliver(place, message_id, body))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)


async def _deliver(place: CallbackPlace, message_id: str, body: str) -> None:
    async with httpx2.AsyncClient() as client:
        for _ in range(TRIES):
            now = datetime.now(UTC)
            headers = {
                "webhook-id": message_id,
                "webhook-timestamp": str(int(now.timestamp())),
                "webhook-signature": Webhook(place.secret).sign(message_id, now, body),
            }
            try:
                answer = await client.post(place.url, content=body, headers=headers)
                if answer.is_success:
                    return
            except httpx2.HTTPError:
                pass  # nobody there, or no answer: it comes again
            await asyncio.sleep(PAUSE)

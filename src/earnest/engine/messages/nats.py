"""NATS JetStream as a sink: `earnest.<scope>.<type>`, with `Nats-Msg-Id` so that the server tells a
repetition from a new message (within its duplicate window).

Which server is a setting of the deployment (EARNEST_NATS_URL), never of a scope: whoever may name
an address inside the network could have anything there called. The scope is one token of the
subject, so that a permission on `earnest.demo.>` opens no other scope; a dot in its name is written
`~`, which no scope has. The stream is the user's own: publishing to a subject that no stream takes
fails, and is tried again.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from earnest.domain import ids
from earnest.domain.errors import EarnestError, SettingInvalid
from earnest.engine.messages.sending import Outcome, as_body
from earnest.engine.process.logs import get_logger
from earnest.store.messages import Message, Taken

if TYPE_CHECKING:
    from nats.aio.client import Client

log = get_logger("earnest.nats")

VARIABLE = "EARNEST_NATS_URL"
DEFAULT_PREFIX = "earnest"


def subject(prefix: str, message: Message) -> str:
    return f"{prefix}.{message.scope_id.replace('.', '~')}.{message.type}"


class NatsSender:
    """Publishes through one connection of this process, which is made when it is needed. The
    address of a sink is the first part of its subjects."""

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def send(self, taken: Taken, seconds: float) -> Outcome:
        message = taken.delivery.message
        try:
            async with asyncio.timeout(seconds):
                client = await self._connected()
                await client.jetstream(timeout=seconds).publish(
                    subject(taken.delivery.address, message),
                    as_body(message),
                    headers={"Nats-Msg-Id": ids.show("msg", message.message_id)},
                )
        except EarnestError as error:
            return Outcome(arrived=False, error=f"{error.code}: {error.detail}")
        except Exception as error:
            # Its own words may name the server's address.
            return Outcome(arrived=False, error=f"nats: {type(error).__name__}")
        return Outcome(arrived=True)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                await self.close()
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Client:
        url = self._url or os.environ.get(VARIABLE)
        if not url:
            raise SettingInvalid(f"set {VARIABLE} for the processes that work: nats://host:4222")
        try:
            import nats
        except ImportError:
            raise SettingInvalid("install `earnest[nats]` for the processes that work") from None
        # A connection that was lost is made anew by the next message.
        return await nats.connect(url, allow_reconnect=False, connect_timeout=5, error_cb=_note)


async def _note(error: Exception) -> None:
    log.debug("nats.error", error=type(error).__name__)

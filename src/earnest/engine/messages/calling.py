"""Calling a webhook: what is sent, and what its answer means."""

from __future__ import annotations

import email.utils
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import httpx2

from earnest.domain import ids
from earnest.domain.errors import EarnestError
from earnest.engine.messages import signing
from earnest.engine.messages.sending import Outcome, as_body
from earnest.engine.process.addresses import AddressRefused
from earnest.engine.process.outgoing import GuardedClient
from earnest.engine.process.sealing import Sealer
from earnest.store.messages import Taken

GONE = 410
TOO_MANY, UNAVAILABLE = 429, 503


class WebhookSender:
    """Calls webhooks through the guarded client."""

    def __init__(self, sealer: Sealer, client: GuardedClient | None = None) -> None:
        self._sealer = sealer
        self._client = client

    async def send(self, taken: Taken, seconds: float) -> Outcome:
        message = taken.delivery.message
        body = as_body(message)
        try:
            secrets = [self._sealer.open(one) for one in taken.secrets]
            message_id = ids.show("msg", message.message_id)
            headers = signing.sign(secrets, message_id, datetime.now(UTC), body)
            return await self._post(taken.delivery.address, body, headers, seconds)
        except (AddressRefused, TimeoutError, OSError, httpx2.HTTPError) as error:
            return Outcome(arrived=False, error=_told(error))
        except EarnestError as error:
            return Outcome(arrived=False, error=f"{error.code}: {error.detail}")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.http.aclose()

    async def _post(
        self, address: str, body: bytes, headers: dict[str, str], seconds: float
    ) -> Outcome:
        if self._client is None:
            self._client = GuardedClient()
        answer = await self._client.request(
            "POST",
            address,
            headers={
                **headers,
                "Content-Type": "application/json",
                "User-Agent": f"earnest/{version('earnest')}",
            },
            content=body,
            seconds=seconds,
        )
        return as_outcome(answer.status, answer.headers.get("retry-after"))


def as_outcome(status: int, retry_after: str | None = None) -> Outcome:
    """2xx is an acknowledgement; everything else is not, a redirect too."""
    if 200 <= status < 300:
        return Outcome(arrived=True, status=status)
    wait = _wait(retry_after) if status in (TOO_MANY, UNAVAILABLE) else None
    return Outcome(
        arrived=False,
        status=status,
        error=f"the webhook answered {status}",
        gone=status == GONE,
        wait=wait,
    )


def _wait(retry_after: str | None) -> timedelta | None:
    """Seconds or a date (RFC 9110); anything else says nothing."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit() and len(text) < 9:
        return timedelta(seconds=int(text))
    try:
        until = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if until.tzinfo is None:
        return None
    return max(until - datetime.now(UTC), timedelta(0))


def _told(error: Exception) -> str:
    """What kind of failure it was. The words of a transport may quote an address with its query."""
    if isinstance(error, AddressRefused):
        return f"{error.code}: {error.detail}"
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "timed out"
    return type(error).__name__

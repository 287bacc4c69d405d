"""What admins do, called over HTTP: tokens and webhooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime

from earnest.client.calling import Caller, keyed, path_of
from earnest.client.values import Token, Webhook


class AdminCalls:
    """What admins do in their scope.

    What is secret is in the answer that made it and in no other. Where that answer was lost on its
    way, the value has no secret: revoke or remove it, and make another.
    """

    _caller: Caller

    def tokens(
        self, *, principal_id: str | None = None, live: bool = False
    ) -> AsyncGenerator[Token, None]:
        """The scope's tokens, newest first; `live`: only those that open something now."""
        query = {"principal_id": principal_id, "live": "true" if live else None}
        return self._caller.pages(Token, path_of("tokens"), query)

    async def issue_token(
        self,
        principal_id: str,
        *,
        name: str | None = None,
        expires_at: datetime | None = None,
        key: str | None = None,
    ) -> Token:
        """A new token for a principal that is there."""
        body = {"principal_id": principal_id, "name": name, "expires_at": expires_at}
        return await self._caller.write(Token, path_of("tokens"), body, headers=keyed(key))

    async def rotate_token(
        self, token_id: str, *, overlap_seconds: int | None = None, key: str | None = None
    ) -> Token:
        """A new token of the same principal, and an end for the old one after the overlap."""
        body = {} if overlap_seconds is None else {"overlap_seconds": overlap_seconds}
        path = path_of("tokens", token_id, "rotate")
        return await self._caller.write(Token, path, body, headers=keyed(key))

    async def revoke_token(self, token_id: str) -> Token:
        """Harmless when repeated."""
        return await self._caller.write(Token, path_of("tokens", token_id), method="DELETE")

    def webhooks(self) -> AsyncGenerator[Webhook, None]:
        """The scope's webhooks, oldest first."""
        return self._caller.pages(Webhook, path_of("webhooks"))

    async def add_webhook(
        self, url: str, types: Sequence[str], *, description: str = "", key: str | None = None
    ) -> Webhook:
        """Has an address told of what happens from now on."""
        body = {"url": url, "types": list(types), "description": description}
        return await self._caller.write(Webhook, path_of("webhooks"), body, headers=keyed(key))

    async def remove_webhook(self, webhook_id: str) -> None:
        """Removes it with all that waits for it. Raises `NotFound` also where it was removed by an
        earlier try whose answer was lost."""
        await self._caller.ask("DELETE", path_of("webhooks", webhook_id))

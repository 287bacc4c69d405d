"""Cursors of lists: opaque, signed, and bound to the list and the filters that they came from.

A cursor holds the place after which the next page begins. Its signature covers also what the list
was, for whom and how it was narrowed, so that it opens no other. The key is made once and kept in
the database: every process reads it there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import uuid
from datetime import UTC, datetime
from typing import Any

from earnest.domain import canonical
from earnest.domain.errors import InvalidRequest
from earnest.store.access import keep_setting
from earnest.store.database import Database, Tx

_MAC_BYTES = 16
_MAX_LENGTH = 600

Place = list[Any]
"""JSON values; what they mean is the list's own business."""


class Cursors:
    """Writes and reads cursors with the database's key."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key = b""

    async def write(self, listing: dict[str, Any], place: Place) -> str:
        """The cursor for what comes after `place` in the list that `listing` describes."""
        payload = canonical.encode(place)
        mac = _mac(await self._get_key(), listing, payload)
        return base64.urlsafe_b64encode(mac + payload).rstrip(b"=").decode()

    async def read(self, listing: dict[str, Any], text: str) -> Place:
        """The place in a cursor of this very list. Raises `InvalidRequest` for any other text."""
        data = _decoded(text)
        mac, payload = data[:_MAC_BYTES], data[_MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac(await self._get_key(), listing, payload)):
            raise InvalidRequest(
                "the cursor is not one of this list; use it with the filters it came with, or "
                "begin without a cursor"
            )
        place: Place = canonical.decode(payload)
        return place

    async def _get_key(self) -> bytes:
        if not self._key:
            fresh = secrets.token_hex(32)

            async def work(tx: Tx) -> str:
                return await keep_setting(tx, "cursor_key", fresh)

            self._key = bytes.fromhex(await self._database.promise("access", work))
        return self._key


def instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()


def read_instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def read_id(text: str) -> uuid.UUID:
    return uuid.UUID(hex=text)


def _mac(key: bytes, listing: dict[str, Any], payload: bytes) -> bytes:
    told = canonical.encode(listing)
    # The length keeps the two parts apart.
    message = len(told).to_bytes(8, "big") + told + payload
    return hmac.new(key, message, hashlib.sha256).digest()[:_MAC_BYTES]


def _decoded(text: str) -> bytes:
    if len(text) <= _MAX_LENGTH:
        try:
            padded = text + "=" * (-len(text) % 4)
            return base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            pass
    return b""

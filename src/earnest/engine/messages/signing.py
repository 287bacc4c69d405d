"""Signing by the Standard Webhooks rules, with the package of that project.

Source: the Standard Webhooks specification 1.0 (headers `webhook-id`, `webhook-timestamp`,
`webhook-signature` with `v1,` HMAC-SHA256 over id, timestamp and body).
"""

from __future__ import annotations

import base64
import secrets as random_source
from collections.abc import Iterable, Mapping
from datetime import datetime

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

PREFIX = "whsec_"
SECRET_BYTES = 32
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
MAX_ID = 255


class SignatureBad(Exception):
    """Who called did not sign with a secret of the source, or not lately."""


def new_secret() -> str:
    return PREFIX + base64.b64encode(random_source.token_bytes(SECRET_BYTES)).decode()


def sign(secrets: Iterable[str], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The headers of one sending; each secret signs, so that a receiver may know any of them."""
    text = body.decode()
    signatures = [Webhook(secret).sign(message_id, at, text) for secret in secrets]
    return {ID: message_id, TIMESTAMP: str(int(at.timestamp())), SIGNATURE: " ".join(signatures)}


def verify(secrets: Iterable[str], headers: Mapping[str, str], body: bytes) -> str:
    """The message's id. The timestamp may be five minutes off. Raises `SignatureBad`, which does
    not say why: every secret is tried, whatever is wrong."""
    told = {name: headers.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE)}
    good = [secret for secret in secrets if _fits(secret, told, body)]
    message_id = told[ID]
    if not good or len(message_id) > MAX_ID or not message_id.isprintable():
        raise SignatureBad
    return message_id


def _fits(secret: str, headers: dict[str, str], body: bytes) -> bool:
    try:
        Webhook(secret).verify(body, headers, json_parse=False)
    except (WebhookVerificationError, ValueError, TypeError):
        return False  # the package raises the last two for what is not even the form
    return True

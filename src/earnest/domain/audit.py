"""An audit entry: who did what to what. It is written once and never changed."""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import Any

from msgspec import Struct

ACTIONS = frozenset(
    """
    run.cancelled run.retried operation.resolved approval.decided scope.created principal.created
    principal.changed principal.disabled token.issued token.rotated token.revoked
    role.mapped role.unmapped
    """.split()
)
"""What the engine itself keeps; others may be added where they are written."""

ACTION = re.compile(r"[a-z]+\.[a-z_]+")


class AuditEntry(Struct, frozen=True):
    """One entry. `subject` is the TypeID of what was changed, or its noun and name (`scope demo`,
    `principal ann`, `token 4x…`); `detail` says how, without secrets and inputs (P21). `token_id`
    and `request_id` are there when it came through a door that knows them."""

    audit_id: uuid.UUID
    principal_id: str
    token_id: str | None
    action: str
    subject: str
    detail: dict[str, Any]
    request_id: str | None
    created_at: datetime

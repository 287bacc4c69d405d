"""What each of the engine's events means, and what its `payload` may hold. For the documents; apps
add events of their own, whose types are dotted, too."""

from __future__ import annotations

_OPERATION = ("operation_id", "name", "kind", "attempt")
_APPROVAL = (
    "approval_id", "name", "role", "status", "operation_id?", "expires_at?", "decided_by?",
)  # fmt: skip

EVENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "run.submitted": ("It was accepted.", ("kind", "lane", "retry_of?", "revision?")),
    "attempt.started": ("A worker began an attempt.", ("attempt",)),
    "attempt.lost": ("Its worker was not heard of any more.", ("attempt",)),
    "attempt.failed": ("It ended with an error.", ("attempt", "outcome", "error")),
    "run.retry_scheduled": (
        "It will be tried again, in so many seconds.",
        ("failures", "max_attempts", "in_s"),
    ),
    "run.resumed": (
        "It goes on: a doubt was settled, or a worker handed it back.",
        ("attempt", "why?"),
    ),
    "run.progress": ("The handler says how far it is.", ("attempt", "done", "total", "note")),
    "step.completed": ("A step is done and will not be done again.", ("name", "attempt")),
    "run.waiting": ("It waits, and holds no worker meanwhile.", ("attempt", "for")),
    "run.woken": ("What it waited for is there.", ("*",)),
    "run.unknown": ("It waits until a doubt is settled.", ("attempt", "operation_ids")),
    "run.blocked": ("A policy refused the work. It has ended.", ("attempt", "error?")),
    "run.cancel_requested": ("Somebody asked it to stop.", ("by",)),
    "run.succeeded": ("It has ended as it should.", ("attempt",)),
    "run.failed": ("It has ended with an error.", ("attempt", "error?")),
    "run.cancelled": ("It has ended because it was asked to.", ("attempt", "operations", "error?")),
    "operation.reserved": ("What shall be sent is stored.", (*_OPERATION, "again?")),
    "operation.submitting": ("From here on it may have happened.", (*_OPERATION, "sends")),
    "operation.submitted": ("It happened; the receipt is stored.", (*_OPERATION, "ref")),
    "operation.unknown": ("Whether it happened is not known.", (*_OPERATION, "why")),
    "operation.released": ("It surely did not happen.", (*_OPERATION, "reason")),
    "operation.resolved": ("A doubt about it was settled.", (*_OPERATION, "outcome", "by")),
    "approval.requested": ("Somebody has to decide.", _APPROVAL),
    "approval.decided": ("Somebody decided.", _APPROVAL),
    "approval.expired": ("Nobody decided in time.", _APPROVAL),
    "signal.received": ("A signal came, the so-manieth of its name.", ("name", "number")),
    "artifact.created": (
        "It has a new file.",
        ("artifact_id", "name", "media_type", "size", "sha256"),
    ),
}
"""By type: when, and the members of the payload; `?` is not always there, `*` stands for what
depends on the case."""


def misfit(type_: str, payload: dict[str, object]) -> str | None:
    """What of a payload is not told here; nothing of an app's own event."""
    told = EVENTS.get(type_)
    if told is None or "*" in told[1]:
        return None
    needed = {name for name in told[1] if not name.endswith("?")}
    known = {name.rstrip("?") for name in told[1]}
    wrong = (set(payload) - known) | (needed - set(payload))
    return f"{type_}: {', '.join(sorted(wrong))}" if wrong else None

"""The one tree of errors.

Each class documents itself: the first line of its docstring is the title shown to people, `code`
is the stable name used in HTTP problems, event payloads and exit texts. Outcomes that are not
errors (a cancel that came too late, a fence that was lost while settling a group) are values, not
members of this tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class EarnestError(Exception):
    """Something Earnest refused or could not do.

    `request_id` names the request in the server's log, where a client was told the error by one.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    request_id: str | None = None

    def __init__(self, detail: str, *, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fields: dict[str, Any] = dict(fields or {})

    @classmethod
    def title(cls) -> str:
        """The first line of the docstring: what happened, for people."""
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0].rstrip(".")

    def as_json(self) -> dict[str, Any]:
        """The form kept with a run and shown in answers: code, detail and the fields."""
        return {"code": self.code, "detail": self.detail, **self.fields}


# ---- what a caller asked for -------------------------------------------------------------------


class InvalidRequest(EarnestError):
    """The request is not valid."""

    code, status = "invalid_request", 400


class UnknownKind(InvalidRequest):
    """No run kind of that name is registered."""

    code = "unknown_kind"


class PayloadTooLarge(EarnestError):
    """The payload is larger than allowed."""

    code, status = "payload_too_large", 413


class TextTooLong(PayloadTooLarge):
    """The run has written as much text as is kept."""

    code = "text_too_long"


class QuotaExceeded(EarnestError):
    """There is no room left."""

    code, status = "quota_exceeded", 429


class Unauthenticated(EarnestError):
    """The request carries no valid token."""

    code, status = "unauthenticated", 401


class Forbidden(EarnestError):
    """The role needed for this is missing."""

    code, status = "forbidden", 403


class NotFound(EarnestError):
    """There is no such thing here."""

    code, status = "not_found", 404


class Conflict(EarnestError):
    """The request contradicts what is already so."""

    code, status = "conflict", 409


class IdempotencyConflict(Conflict):
    """The same key was used for another request."""

    code = "idempotency_conflict"


class UnderReview(Conflict):
    """An operation is in doubt and must be settled first."""

    code = "under_review"


class ProposalChanged(Conflict):
    """The decision is about another request than the one that waits for it."""

    code = "proposal_changed"


class ResourceBusy(Conflict):
    """Another live operation holds this resource key."""

    code = "resource_busy"


class StaleVersion(EarnestError):
    """The thing has changed since it was read."""

    code, status = "version_mismatch", 412


class PreconditionRequired(EarnestError):
    """The request must name the version it decides about."""

    code, status = "precondition_required", 428


class ResyncRequired(EarnestError):
    """Events before the cursor are no longer retained."""

    code, status = "resync_required", 410


class Busy(EarnestError):
    """The service cannot take this now; try again later."""

    code, status = "busy", 503


# ---- the machine Earnest stands on -------------------------------------------------------------


class DatabaseUnavailable(Busy):
    """The database cannot be reached."""

    code = "database_unavailable"


class StorageUnavailable(Busy):
    """The place of artifacts cannot be used now."""

    code = "storage_unavailable"


class HomeUnusable(EarnestError):
    """The home folder cannot be used."""

    code = "home_unusable"


class SchemaMismatch(EarnestError):
    """The database's schema is not the one this program needs."""

    code = "schema_mismatch"


class SettingInvalid(EarnestError):
    """A setting has a value that cannot work."""

    code = "setting_invalid"


# ---- inside a run ------------------------------------------------------------------------------


class FencedOut(EarnestError):
    """This attempt no longer owns the run."""

    code, status = "fenced_out", 409


class CodeChanged(EarnestError):
    """The code asks for something else than it did in an earlier attempt."""

    code, status = "code_changed", 409


class NameNeeded(EarnestError):
    """A name was repeated inside parallel branches; give each an explicit key."""

    code, status = "name_needed", 400


class InputInvalid(InvalidRequest):
    """The input of the run does not fit its kind, and never did."""

    code = "input_invalid"


class ResultInvalid(EarnestError):
    """The handler's result cannot be stored."""

    code = "result_invalid"


class AttemptTimedOut(EarnestError):
    """The attempt ran longer than its timeout."""

    code = "timeout"


class ChildFailed(EarnestError):
    """A child run ended without success."""

    code = "child_failed"


class SignalTimedOut(EarnestError):
    """The signal did not come in time."""

    code = "signal_timed_out"


class ApprovalRejected(EarnestError):
    """Somebody decided against it."""

    code, status = "approval_rejected", 409


class ApprovalExpired(EarnestError):
    """Nobody decided in time."""

    code, status = "approval_expired", 409


class Blocked(EarnestError):
    """A policy refuses the work; the reason is stable, `retry_at` is a hint."""

    code = "blocked"


class Failed(EarnestError):
    """The handler says that the run has failed for good; it is not retried."""

    code = "failed"


# ---- an operation's outcome --------------------------------------------------------------------


class Refused(EarnestError):
    """The provider refused; surely nothing was done."""

    code, status = "refused", 409


class NotSent(EarnestError):
    """The call surely never left; nothing was done."""

    code, status = "not_sent", 503


class Inconclusive(EarnestError):
    """The provider could not tell whether it was done."""

    code = "inconclusive"


class InDoubt(EarnestError):
    """Whether the operation happened cannot be known; it waits for a proof or a person."""

    code, status = "in_doubt", 409


class NotDone(EarnestError):
    """A person established that the operation did not happen."""

    code, status = "not_done", 409

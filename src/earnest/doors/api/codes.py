"""The closed list of codes: under which status each is told, when, and what its caller can do.

`docs/problems.md` and the page at `/docs` are made from it; a problem's `type` leads to the latter.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE = "/docs"


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of problem. `title` is the same each time, `when` and `then` are for people:
    when it is told, and what its caller can do. `members` are what it holds beside the usual."""

    status: int
    title: str
    when: str
    then: str
    members: tuple[str, ...] = ()


CODES: dict[str, Code] = {
    "invalid_request": Code(
        400,
        "The request is not valid",
        "Body, query, header or cursor are not what the call takes. Where it is known which part "
        "it is, `errors` names each with a JSON pointer.",
        "Mend the request. Sent again as it is, it is refused again.",
    ),
    "unauthenticated": Code(
        401,
        "The request carries no valid token",
        "No token, two of them, or one that is mistyped, unknown, expired or revoked, or whose "
        "principal is disabled; or a signature that is not right. They are told alike.",
        "Send `Authorization: Bearer ern_…`; ask an admin for a token.",
    ),
    "forbidden": Code(
        403,
        "The role needed for this is missing",
        "You may see it, and your roles do not open this call. Roles do not include each other.",
        "Ask somebody with the role, or an admin for it.",
    ),
    "not_found": Code(
        404,
        "There is no such thing here",
        "The path is unknown, or what it names is not there, is of another scope, or is not yours "
        "to see. These are told alike; a malformed id is, too.",
        "Look at the id and at whose token it is.",
    ),
    "method_not_allowed": Code(
        405,
        "The path does not know this method",
        "The path is there, and not with this method.",
        "`Allow` names those it knows.",
    ),
    "conflict": Code(
        409,
        "The request contradicts what is already so",
        "What is asked for cannot be, as things stand. `reason` says it more finely where it can.",
        "Read the thing anew and decide again.",
    ),
    "idempotency_conflict": Code(
        409,
        "The same key was used for another request",
        "This `Idempotency-Key` came before with another body, or for another call.",
        "Use a new key for a new request; send the old one exactly as it was.",
    ),
    "approval_expired": Code(
        409,
        "Nobody decided in time",
        "The decision came after `expires_at`.",
        "Nothing more can be decided about it. The run has been told.",
    ),
    "proposal_changed": Code(
        409,
        "The decision is about another request than the one that waits for it",
        "`digest` is not that of the proposal.",
        "Read the approval anew, look at its proposal, and decide about that.",
    ),
    "resync_required": Code(
        410,
        "Events before the cursor are no longer retained",
        "What comes after the place that was asked for cannot be told without a gap.",
        "Read the runs that you follow anew, and go on after `head_seq`. A run's own events bring "
        "it along as `snapshot`.",
        ("status", "after_seq", "minimum_retained_seq", "head_seq", "snapshot"),
    ),
    "version_mismatch": Code(
        412,
        "The thing has changed since it was read",
        "`If-Match` names another version than the one there is.",
        "Read it anew, look at what changed, and send its `ETag`.",
    ),
    "payload_too_large": Code(
        413,
        "The payload is larger than allowed",
        "A body has at most 1 MiB, the input of a run 256 KiB. The connection is closed.",
        "Store larger things as artifacts and name them.",
    ),
    "unsupported_media_type": Code(
        415,
        "The body's media type is not taken here",
        "The body is not said to be JSON; or a file came as a form or encoded.",
        "Send `Content-Type: application/json`; send a file's bytes as they are.",
    ),
    "range_not_satisfiable": Code(
        416,
        "No byte of the range is there",
        "`Range` begins after the end.",
        "`Content-Range` says how many bytes there are.",
    ),
    "precondition_required": Code(
        428,
        "The request must name the version it decides about",
        "`If-Match` is missing where two people may decide, or is `*`.",
        "Read the thing, look at it, and send its `ETag` as `If-Match`.",
    ),
    "quota_exceeded": Code(
        429,
        "There is no room left",
        "So many of these as the scope or the principal may have are there.",
        "Remove something, or come again after `Retry-After` seconds; an admin may make room.",
    ),
    "internal_error": Code(
        500,
        "Something went wrong inside",
        "It is our fault. It has been logged under `request_id`; details are not told.",
        "Send it again with the same key; tell us the `request_id`.",
    ),
    "busy": Code(
        503,
        "The service cannot take this now",
        "The process is starting or stopping, or the database or the artifacts' place is away. "
        "Whether something was done cannot always be said.",
        "Come again after `Retry-After` seconds, with the same `Idempotency-Key`.",
    ),
}

BY_STATUS = {code.status: name for name, code in reversed(CODES.items())}
"""What a status says when nothing finer is said: the first of its codes."""


def type_of(code: str) -> str:
    """The `type` of a problem: where it is explained, on the server that told it."""
    return f"{PAGE}#problem-{code}"

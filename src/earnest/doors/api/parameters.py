"""What callers send, by type: bodies and queries. Unknown members and parameters are refused, so
that a misspelt filter does not quietly list everything."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from earnest.domain.approval import ApprovalStatus, Decision
from earnest.domain.errors import InvalidRequest
from earnest.domain.operation import OperationState
from earnest.domain.run import RunStatus
from earnest.engine.process.epoch import POSITION_PATTERN, read_position

_INSTANT = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.IGNORECASE | re.ASCII
)
_LABEL = re.compile(r"[:=]")
_SEQUENCE = re.compile("[0-9]{1,15}", re.ASCII)
GREATEST_SEQUENCE = 10**15 - 1  # no text comes near it, and every JSON reader can hold it
FEED_CURSOR_PATTERN = f"^now$|{POSITION_PATTERN}"
SEQUENCE_WANTED = "a place in a text is a number from 0, in digits"


def read_sequence(text: str) -> int:
    """Raises `ValueError` for what is no place in a text."""
    if not _SEQUENCE.fullmatch(text):
        raise ValueError(SEQUENCE_WANTED)
    return int(text)


def _read_instant(value: object) -> datetime:
    """RFC 3339 and nothing looser: not a bare number, not a time without its zone."""
    if isinstance(value, str) and _INSTANT.fullmatch(value):
        try:
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    raise ValueError("a time looks like 2026-01-31T12:00:00Z")


def _check_position(text: str) -> str:
    try:
        read_position(text)
    except InvalidRequest as error:
        raise ValueError(error.detail) from error
    return text


def _read_sequence(value: object) -> int:
    """Digits and nothing looser: no sign, no point, no spaces."""
    if isinstance(value, str):
        return read_sequence(value)
    if isinstance(value, int):
        return value
    raise ValueError(SEQUENCE_WANTED)


def _read_storable(value: object) -> object:
    if isinstance(value, str) and "\x00" in value:
        raise ValueError("a NUL character cannot be stored")
    return value


Instant = Annotated[
    datetime,
    BeforeValidator(_read_instant),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=200), BeforeValidator(_read_storable)]
PositionText = Annotated[
    str,
    AfterValidator(_check_position),
    WithJsonSchema({"type": "string", "pattern": POSITION_PATTERN}),
]
FeedCursor = Annotated[
    str,
    AfterValidator(lambda text: text if text == "now" else _check_position(text)),
    WithJsonSchema({"type": "string", "pattern": FEED_CURSOR_PATTERN}),
]
Sequence = Annotated[
    int,
    BeforeValidator(_read_sequence),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": GREATEST_SEQUENCE}),
]
Label = Annotated[
    str, Field(pattern="^[^:=]{1,100}[:=]", max_length=301), BeforeValidator(_read_storable)
]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _read_whole(cls, value: Any, info: ValidationInfo) -> Any:
        """To JSON 7.0 is the same number as 7; to the strict fields of whole numbers it is not."""
        field = cls.model_fields[info.field_name or ""]
        is_whole = isinstance(value, float) and value.is_integer()
        return int(value) if is_whole and _takes_whole(field.annotation) else value


def _takes_whole(annotation: Any) -> bool:
    return annotation is int or any(_takes_whole(one) for one in get_args(annotation))


# ---- bodies ------------------------------------------------------------------------------------


class SubmitBody(Strict):
    """A request for a run. `kind` says which types fit as `input`."""

    kind: Name
    input: Any = None
    conversation_id: Name | None = None
    lane: Name | None = None
    priority: Annotated[int, Field(strict=True, ge=-1000, le=1000)] = 0
    not_before: Instant | None = None
    context: dict[str, Any] = {}
    labels: dict[Annotated[str, Field(min_length=1, max_length=100)], str] = {}


class SignalBody(Strict):
    """A named fact for a run; `payload` is what its `wait_signal` returns."""

    payload: Any = None


class RetryBody(Strict):
    """Whether the new revision may send again what was submitted before it."""

    repeat_submitted: Annotated[bool, Field(strict=True)] = False


class ResolutionBody(Strict):
    """What a person established: `submitted` (it happened; with the receipt) or `released` (it did
    not), and how that is known."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"outcome": {"const": "submitted"}}},
            "then": {"required": ["receipt"], "properties": {"receipt": {"not": {"type": "null"}}}},
            "else": {"properties": {"receipt": {"type": "null"}}},
        }
    )

    outcome: Literal["submitted", "released"]
    receipt: Any = None
    evidence: Annotated[str, Field(strict=True, min_length=1, max_length=4000)]
    note: Annotated[str, Field(strict=True, max_length=4000)] = ""


class DecisionBody(Strict):
    """What you decide, and about what: `digest` is that of the proposal that you looked at."""

    decision: Decision
    digest: Annotated[str, Field(strict=True, min_length=1, max_length=200)]
    note: Annotated[str, Field(strict=True, max_length=4000)] = ""


# ---- queries -----------------------------------------------------------------------------------


class PageQuery(Strict):
    limit: Annotated[int, Field(ge=1, le=100)] = 50
    cursor: str | None = None


class RunsQuery(PageQuery):
    """Filters narrow together. `label` is `name:value` and may be given several times; `q` is
    looked for in kind, conversation and labels."""

    status: RunStatus | None = None
    kind: Text | None = None
    lane: Text | None = None
    label: list[Label] = []
    conversation_id: Text | None = None
    created_after: Instant | None = None
    created_before: Instant | None = None
    q: Text | None = None


class EventsQuery(PageQuery):
    """Events after the number `after_seq`, with or without its epoch; a cursor of an earlier page
    goes on after that page."""

    after_seq: PositionText = "0"


class FeedQuery(PageQuery):
    """Events after `cursor`: one that a page gave or the `id` of an event, or `now` for only what
    is new; without it, from the oldest that is kept."""

    cursor: FeedCursor | None = None


class TextQuery(Strict):
    """Text after the sequence `after`."""

    after: Sequence = 0


class OperationsQuery(PageQuery):
    state: OperationState | None = None


class ApprovalsQuery(PageQuery):
    status: ApprovalStatus | None = None


def read_labels(given: list[str]) -> dict[str, str] | None:
    """The labels that `name:value` texts ask for; `None` without any."""
    labels: dict[str, str] = {}
    for text in given:
        name, value = _LABEL.split(text, maxsplit=1)
        labels[name] = value
    return labels or None

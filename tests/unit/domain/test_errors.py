"""Errors: one tree, a code of its own for each, and what is kept of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import earnest.engine.operations.operating  # noqa: F401  brings the engine's own errors in
from earnest.domain import canonical
from earnest.domain.errors import EarnestError, IdempotencyConflict, InvalidRequest, Refused
from earnest.domain.event import MAX_PAYLOAD_BYTES
from earnest.domain.kept_error import MAX_DETAIL, kept_error, kept_text


def _tree(error: type[EarnestError] = EarnestError) -> Iterator[type[EarnestError]]:
    if error.__module__.startswith("earnest."):
        yield error
        for child in error.__subclasses__():
            yield from _tree(child)


ERRORS = list(_tree())


def test_a_code_belongs_to_one_error() -> None:
    doubled = {code: n for code, n in Counter(error.code for error in ERRORS).items() if n > 1}
    assert doubled == {}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_error_tells_what_happened_in_one_line(error: type[EarnestError]) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.code)
    assert 400 <= error.status <= 599
    assert error.title()
    assert not error.title().endswith(".")
    assert error.__doc__ is not None


def test_an_error_has_detail_and_fields() -> None:
    error = IdempotencyConflict("used before", fields={"run_id": "run_1"})
    assert str(error) == "used before"
    assert error.as_json() == {
        "code": "idempotency_conflict",
        "detail": "used before",
        "run_id": "run_1",
    }


def test_an_error_made_without_fields_shares_none_with_others() -> None:
    InvalidRequest("x").fields["a"] = 1
    assert InvalidRequest("y").fields == {}


SHORT = {"code": "refused", "detail": "no"}


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (Refused("no", fields={"reason": "late"}), {**SHORT, "reason": "late"}),
        (KeyError("amount"), {"code": "handler_failed", "detail": "KeyError: 'amount'"}),
        (Refused("n\x00\no"), SHORT),
        (Refused("no", fields={"reason": "\x00"}), SHORT),
        (Refused("no", fields={"reason": object()}), SHORT),
        (Refused("no", fields={"reason": "x" * 10_000}), SHORT),
        (Refused("no", fields={"detail": "other"}), SHORT),
    ],
    ids=["whole", "foreign", "unprintable", "NUL field", "no JSON", "too large", "own words win"],
)
def test_of_an_error_is_kept_what_can_be_kept(error: Exception, kept: dict[str, Any]) -> None:
    assert kept_error(error) == kept


def test_whatever_an_error_says_it_fits_into_an_event() -> None:
    long = Refused("ü" * 100_000, fields={"where": "x" * 7000})
    assert len(canonical.encode(kept_error(long))) < MAX_PAYLOAD_BYTES
    assert len(kept_error(ValueError("y" * 100_000))["detail"]) == MAX_DETAIL


def test_a_kept_text_has_no_half_of_a_pair_and_nothing_that_steers_a_terminal() -> None:
    assert kept_text("a\ud800b\x1b[31mc\u202e") == "ab[31mc"

"""Canonical JSON: one form for one value, and nothing that is lost on its way."""

from __future__ import annotations

import json
import math
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earnest.domain import canonical

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=10)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | texts
    | st.floats(allow_nan=False).filter(math.isfinite)
)
values = st.recursive(leaves, lambda of: st.lists(of) | st.dictionaries(texts, of), max_leaves=5)


@settings(max_examples=50)
@given(values)
def test_what_is_encoded_is_read_back_the_same(value: Any) -> None:
    assert canonical.decode(canonical.encode(value)) == value


@settings(max_examples=50)
@given(values)
def test_other_programs_read_the_same_value(value: Any) -> None:
    assert json.loads(canonical.encode(value)) == value


@settings(max_examples=50)
@given(st.dictionaries(texts, leaves, min_size=2))
def test_the_order_of_keys_makes_no_difference(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert canonical.encode(turned) == canonical.encode(value)


def test_different_values_have_different_digests() -> None:
    told = [1, 1.0, "1", [1], {"1": 1}, True, None, "", [], {}]
    assert len({canonical.digest(canonical.encode(value)) for value in told}) == len(told)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("a\x00b", "$"),
        (["a", "\x00"], "$[1]"),
        ({"a": {"b": "\x00"}}, "$.a.b"),
        ({"\x00": 1}, "a key"),
        ({"a": ["\ud800"]}, "half of a surrogate pair at $.a[0]"),
        ({"\udfff": 1}, "half of a surrogate pair at $ (a key)"),
        (math.nan, "$"),
        ({"a": [1, math.inf]}, "$.a[1]"),
        ((1, -math.inf), "$[1]"),
    ],
    ids=repr,
)
def test_what_the_database_cannot_keep_is_refused_and_told_where(value: Any, place: str) -> None:
    with pytest.raises(canonical.NotJson) as refusal:
        canonical.encode(value)
    assert place in str(refusal.value)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":{"b":"\\ud800"}}',
        b'{"a":{"b":"\\uDC00 and more"}}',
        '{"a":{"b":"\\ud800\\u0041 and more"}}',
    ],
)
def test_half_of_a_surrogate_pair_is_called_that(data: bytes | str) -> None:
    with pytest.raises(canonical.NotJson, match=r"half of a surrogate pair at \$\.a\.b is no"):
        canonical.decode(data)


def test_text_that_ends_too_early_is_called_that_also_with_escapes_in_it() -> None:
    with pytest.raises(canonical.NotJson, match="truncated"):
        canonical.decode(b'{"a":"\\ud83d\\ude00')


@pytest.mark.parametrize(
    "value", ["null", "\\u0000", ["null", None], {"null": "\\u0000"}], ids=repr
)
def test_what_only_looks_like_it_is_kept(value: Any) -> None:
    assert canonical.decode(canonical.encode(value)) == value


def _in_a_circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [object(), {1: "a"}, {None: 1}, "\ud800", _in_a_circle()],
    ids=["object", "number as key", "none as key", "half of a pair", "circle"],
)
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(canonical.NotJson):
        canonical.encode(value)


@pytest.mark.parametrize("data", ["", "{", "nul", '{"a": 1,}', b"\xff", "[" * 100_000], ids=repr)
def test_what_cannot_be_read_is_refused(data: str | bytes) -> None:
    with pytest.raises(canonical.NotJson):
        canonical.decode(data)


@pytest.mark.parametrize(
    ("text", "storable"),
    [("", True), ("täxt 😀", True), ("a\x00", False), ("a\udfff", False)],
)
def test_text_that_can_be_stored_has_no_nul_and_no_half_of_a_pair(
    text: str, storable: bool
) -> None:
    assert canonical.storable(text) is storable


def test_common_values_of_python_have_the_form_that_json_has_for_them() -> None:
    value = {"at": datetime(2026, 1, 31, 12, 0, tzinfo=UTC), "id": uuid.UUID(int=1)}
    assert canonical.encode(value) == (
        b'{"at":"2026-01-31T12:00:00Z","id":"00000000-0000-0000-0000-000000000001"}'
    )

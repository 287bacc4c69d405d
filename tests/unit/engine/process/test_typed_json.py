"""Values of declared types as JSON, and what is said of those that do not fit."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError

from earnest.domain.canonical import NotJson
from earnest.engine.process.typed_json import encode_typed, misfit


class Refund(BaseModel):
    order: int
    note: str = ""
    tags: list[str] = []


def test_a_value_is_written_as_its_type_says() -> None:
    assert encode_typed(TypeAdapter(Refund), Refund(order=7)) == b'{"note":"","order":7,"tags":[]}'


@pytest.mark.parametrize("value", [math.nan, [1, math.inf], {"a": {"b": -math.inf}}], ids=repr)
def test_a_number_that_is_none_is_not_quietly_written_as_null(value: Any) -> None:
    with pytest.raises(NotJson, match="is not a JSON number"):
        encode_typed(TypeAdapter(Any), value)


@pytest.mark.parametrize("value", [None, [None, 1], {"a": None}], ids=repr)
def test_a_null_that_is_meant_is_kept(value: Any) -> None:
    assert b"null" in encode_typed(TypeAdapter(Any), value)


def _wrongly_made(**fields: Any) -> Refund:
    return Refund.model_construct(**{"order": 1, "note": "", "tags": [], **fields})


@pytest.mark.parametrize(
    ("declared", "value", "told"),
    [
        (int, "hunter2", "str instead of int"),
        (int | str, [["hunter2"]], "list instead of int or str"),
        (Refund, _wrongly_made(order="hun, input_type=x])\nter2"), "order: str instead of int"),
        (
            list[Refund],
            [_wrongly_made(order="hunter2"), _wrongly_made(tags=[b"hunter2"])],
            "order: str instead of int; tags: bytes instead of str",
        ),
        (Refund, {"order": "hunter2"}, "dict instead of Refund"),
        (tuple[int, int], (1,), "a value is not of its declared type"),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_refused_with_its_place_and_types_and_not_repeated(
    declared: Any, value: Any, told: str
) -> None:
    """P21: it may be a secret."""
    with pytest.raises(ValueError, match="serialize") as refusal:
        encode_typed(TypeAdapter(declared), value, warnings="error")
    assert misfit(refusal.value) == told


def test_a_type_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ValueError, match="serialize") as refusal:
        encode_typed(TypeAdapter(Any), {"a": object()}, warnings="error")
    assert misfit(refusal.value) == "Unable to serialize unknown type: <class 'object'>"


def test_where_another_type_is_not_refused_nothing_is_said_of_the_value(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """P21: a warning would be printed, and it repeats the value."""
    assert encode_typed(TypeAdapter(Refund), _wrongly_made(order="hunter2"))
    assert list(recwarn) == []


def _refusal(value: Any) -> str:
    with pytest.raises(ValidationError) as refusal:
        TypeAdapter(Refund).validate_python(value)
    return misfit(refusal.value)


def test_a_misfit_names_each_place() -> None:
    told = _refusal({"order": "x", "tags": ["a", 1]})
    assert told.startswith("order: ")
    assert "; tags/1: " in told


def test_a_misfit_does_not_tell_the_value() -> None:
    """It may be a secret (P21)."""
    assert "hunter2" not in _refusal({"order": "hunter2", "note": ["hunter2"]})
    assert "hunter2" not in misfit(_wrong_secret())


def _wrong_secret() -> ValidationError:
    with pytest.raises(ValidationError) as refusal:
        TypeAdapter(dict[str, SecretStr]).validate_python({"password": ["hunter2"]})
    return refusal.value


def test_of_many_misfits_five_are_told() -> None:
    told = _refusal({"order": 1, "tags": list(range(20))})
    assert told.count("tags/") == 5
    assert told.endswith("; and 15 more")


def test_a_misfit_of_the_whole_says_so() -> None:
    assert _refusal(7).startswith("the whole: ")


def test_other_errors_say_what_they_say() -> None:
    assert misfit(ValueError("too late")) == "too late"

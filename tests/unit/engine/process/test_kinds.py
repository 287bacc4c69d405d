"""Run kinds: what fits them, and what is said of what does not."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from earnest.domain.errors import InvalidRequest, UnknownKind
from earnest.domain.foreign_errors import Exited
from earnest.engine.process.kinds import Kinds, RunKind, make_kind


class Line(BaseModel):
    article: str
    count: int = 1


class Order(BaseModel):
    number: int
    lines: list[Line] = []
    by_shelf: dict[str, int] = {}


async def _ship(ctx: object, order: Order) -> str:
    return f"shipped {order.number}"


def _plain(ctx: object, value: Any) -> Any:
    return value


SHIP, PLAIN = make_kind("ship", _ship, lane="slow"), make_kind("plain", _plain)


def test_a_handler_says_its_types_and_whether_it_is_plain() -> None:
    assert (SHIP.is_async, PLAIN.is_async) == (True, False)
    assert SHIP.read_input({"number": 7}) == Order(number=7)
    assert SHIP.output_type.validate_python("x") == "x"


@pytest.mark.parametrize(
    "value", [{"number": 7}, {"number": "7"}, Order(number=7), {"lines": [], "number": 7}], ids=repr
)
def test_inputs_that_mean_the_same_are_stored_the_same(value: object) -> None:
    assert SHIP.encode_input(value) == b'{"by_shelf":{},"lines":[],"number":7}'


def test_what_is_stored_is_read_back_as_the_handlers_type() -> None:
    order = Order(number=7, lines=[Line(article="x")])
    assert SHIP.read_input(order.model_dump(mode="json")) == order


def _refusal(kind: RunKind[Any, Any], value: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        kind.encode_input(value)
    return refusal.value


def test_each_place_that_does_not_fit_is_pointed_at() -> None:
    error = _refusal(
        SHIP, {"lines": [{"article": "x", "count": "two"}], "by_shelf": {"a/b~c": "d"}}
    )
    assert [one["pointer"] for one in error.fields["errors"]] == [
        "/input/number",
        "/input/lines/0/count",
        "/input/by_shelf/a~1b~0c",
    ]
    assert error.detail.startswith("the input does not fit ship: number: ")


def test_the_value_that_does_not_fit_is_not_told() -> None:
    """It may be a secret (P21)."""
    error = _refusal(SHIP, {"number": "hunter2"})
    assert "hunter2" not in f"{error.detail} {error.fields}"


@pytest.mark.parametrize("value", ["\x00", float("nan"), {"a": [float("inf")]}, ...], ids=repr)
def test_what_cannot_be_stored_is_refused(value: object) -> None:
    assert _refusal(PLAIN, value).detail.startswith("the input of plain cannot be stored: ")


async def test_a_kind_is_called_as_the_function_it_is() -> None:
    assert await SHIP(None, Order(number=7)) == "shipped 7"
    assert PLAIN(None, 7) == 7


def test_a_kind_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert Kinds([SHIP, PLAIN]).require("ship") is SHIP
    with pytest.raises(
        UnknownKind, match="no run kind 'send' is registered; known are: plain, ship"
    ):
        Kinds([SHIP, PLAIN]).require("send")
    with pytest.raises(UnknownKind, match="known are: none"):
        Kinds().require("send")


def test_there_is_always_a_default_lane() -> None:
    assert Kinds().lanes() == ["default"]
    assert Kinds([SHIP, PLAIN]).lanes() == ["default", "slow"]


class Leaving(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def leave(cls, number: int) -> int:
        sys.exit(number)


async def _leave(ctx: object, value: Leaving) -> None:
    pass


def test_an_input_whose_type_exits_ends_no_process() -> None:
    """P5: it is checked where runs are submitted and where they are run."""
    kind = make_kind("leave", _leave)
    for take in (kind.encode_input, kind.read_input):
        with pytest.raises(Exited):
            take({"number": 3})

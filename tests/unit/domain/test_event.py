"""Events: which types are whose, and which end a run."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from earnest.domain.event import ENGINE_TYPES, FINAL_TYPES, Event, is_app_type
from earnest.domain.run import FINAL

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("name", ["order.sold", "a.b", "shop_1.order.paid_2", "run.mine"])
def test_dotted_lower_case_words_are_an_apps(name: str) -> None:
    assert is_app_type(name)


@pytest.mark.parametrize(
    "name",
    ["", "sold", "Order.sold", "order.", ".sold", "order..sold", "1.a", "a.1", "order.sold\n",
     "order sold", "a." + "b" * 99, *sorted(ENGINE_TYPES)],
)  # fmt: skip
def test_nothing_else_is(name: str) -> None:
    assert not is_app_type(name)


def test_every_final_status_is_told_by_one_event() -> None:
    assert FINAL_TYPES <= ENGINE_TYPES
    assert {name.removeprefix("run.") for name in FINAL_TYPES} == set(FINAL)


@pytest.mark.parametrize("name", sorted(ENGINE_TYPES))
def test_an_event_knows_whether_it_is_final(name: str) -> None:
    event = Event(uuid.UUID(int=1), 1, name, {}, WHEN)
    assert event.final is (name in FINAL_TYPES)

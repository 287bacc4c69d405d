"""Which engine, scope and principal a program acts through when it does not say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from earnest.domain.errors import SettingInvalid
from earnest.engine.process import binding
from earnest.engine.process.binding import Binding
from earnest.engine.process.engine import Engine
from earnest.store.database import Database


@pytest.fixture
def bound() -> Iterator[list[Binding]]:
    """Two bindings, neither of them open yet."""
    engine = Engine(Database("postgresql://nowhere/none"))
    made = [Binding(engine, "shop", "alice"), Binding(engine, "other", "bob")]
    yield made
    for one in made:
        binding.unbind(one)


def test_without_one_a_program_is_told_what_to_do() -> None:
    with pytest.raises(SettingInvalid, match=r"async with earnest\.open\(app\)"):
        binding.current()


def test_the_one_opened_last_counts(bound: list[Binding]) -> None:
    first, second = bound
    binding.bind(first)
    binding.bind(second)
    assert binding.current() is second
    binding.unbind(second)
    assert binding.current() is first


def test_the_one_opened_first_may_be_closed_first(bound: list[Binding]) -> None:
    first, second = bound
    binding.bind(first)
    binding.bind(second)
    binding.unbind(first)
    assert binding.current() is second


def test_closing_what_is_not_open_is_harmless(bound: list[Binding]) -> None:
    binding.unbind(bound[0])

"""Names inside a run: a later attempt finds again what an earlier one did, or is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.domain.errors import InvalidRequest, NameNeeded
from earnest.engine.attempts.names import MAX_NAME, Names
from earnest.engine.attempts.recalling import kept_beside_steps, spoken

asked = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, "k1", "k2"])), max_size=9)


def test_a_repeated_name_is_numbered_in_the_order_it_is_asked_for() -> None:
    names = Names()
    assert [names.resolve("step", name) for name in "aabab"] == ["a", "a#2", "b", "a#3", "b#2"]


@pytest.mark.parametrize("name", [5, None, b"a", print])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(InvalidRequest, match="a name has 1 to 200 characters, as a text"):
        Names().resolve("step", name)


def test_rooms_do_not_share_their_names() -> None:
    names = Names()
    assert names.resolve("step", "a") == names.resolve("operation", "a") == "a"
    assert names.resolve("step", "a") == "a#2"


def test_a_key_tells_parallel_branches_apart_and_is_used_once() -> None:
    names = Names()
    assert names.resolve("step", "a", "x") == "a#x"
    assert names.resolve("step", "a", "y") == "a#y"
    assert names.resolve("operation", "a", "x") == "a#x"
    with pytest.raises(NameNeeded, match="'x' of 'a' was used before"):
        names.resolve("step", "a", "x")


@pytest.mark.parametrize("first", ["key", "number"])
def test_a_key_never_stands_for_a_repetition(first: str) -> None:
    """Else a step would find the result of another one."""
    names = Names()
    names.resolve("step", "a")
    turns: dict[str, Callable[[], str]] = {
        "key": lambda: names.resolve("step", "a", "2"),
        "number": lambda: names.resolve("step", "a"),
    }
    assert turns.pop(first)() == "a#2"
    with pytest.raises(NameNeeded):
        turns.popitem()[1]()


@given(asked)
def test_one_attempt_never_gets_one_name_twice(asked: list[tuple[str, str | None]]) -> None:
    names, given_out = Names(), []
    for name, key in asked:
        try:
            given_out.append(names.resolve("step", name, key))
        except NameNeeded:
            assert key is not None
    assert len(set(given_out)) == len(given_out)


@given(asked)
def test_two_attempts_that_ask_the_same_get_the_same(asked: list[tuple[str, str | None]]) -> None:
    def attempt() -> list[str]:
        names, given_out = Names(), []
        for name, key in asked:
            try:
                given_out.append(names.resolve("step", name, key))
            except NameNeeded:
                given_out.append("refused")
        return given_out

    assert attempt() == attempt()


@pytest.mark.parametrize(
    "name", ["", "a#b", "#", "a\x00", "\ud800", "x" * (MAX_NAME + 1)], ids=ascii
)
def test_what_cannot_be_kept_is_no_name(name: str) -> None:
    with pytest.raises(InvalidRequest):
        Names().resolve("step", name)


@pytest.mark.parametrize("key", ["", "a\x00", "\ud800", "x" * (MAX_NAME + 1)], ids=ascii)
def test_what_cannot_be_kept_is_no_key(key: str) -> None:
    with pytest.raises(InvalidRequest):
        Names().resolve("step", "a", key)


# ---- branches -----------------------------------------------------------------------------------


async def _ask(names: Names, go: asyncio.Event | None = None) -> str:
    own = names.resolve("step", "a")
    if go is not None:
        await go.wait()
    return own


async def test_a_name_that_goes_on_in_another_branch_needs_a_key() -> None:
    names, go = Names(), asyncio.Event()
    first = asyncio.create_task(_ask(names, go))
    await asyncio.sleep(0)
    with pytest.raises(NameNeeded, match="parallel branches"):
        await asyncio.create_task(_ask(names))
    go.set()
    assert await first == "a"


async def test_branches_one_after_the_other_may_repeat_a_name() -> None:
    names = Names()
    found = [await asyncio.create_task(_ask(names)) for _ in range(3)]
    assert found == ["a", "a#2", "a#3"]


async def test_different_names_may_be_asked_for_in_parallel() -> None:
    names = Names()

    async def ask(name: str) -> str:
        return names.resolve("step", name)

    assert set(await asyncio.gather(ask("a"), ask("b"), ask("c"))) == {"a", "b", "c"}


def test_threads_are_branches_too() -> None:
    names, resolved, go = Names(), threading.Event(), threading.Event()

    def ask() -> None:
        names.resolve("step", "a")
        resolved.set()
        go.wait()

    thread = threading.Thread(target=ask)
    thread.start()
    resolved.wait()
    with pytest.raises(NameNeeded):
        names.resolve("step", "a")
    go.set()
    thread.join()
    assert names.resolve("step", "a") == "a#2"


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ("price", "step 'price'"),
        ("price#2", "step 'price#2'"),
        (kept_beside_steps("emit", "order.priced"), "emit 'order.priced'"),
        (kept_beside_steps("timer", "sleep"), "sleep"),
        (kept_beside_steps("timer", "sleep#2"), "sleep 'sleep#2'"),
        (kept_beside_steps("signal", "go"), "time-out of signal 'go'"),
        (kept_beside_steps("timed out", "go"), "time-out of signal 'go'"),
    ],
)
def test_what_is_remembered_is_told_as_its_author_named_it(stored: str, said: str) -> None:
    assert spoken(stored) == said

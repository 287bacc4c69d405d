"""Ids: derived ones are the same everywhere, and outside an id has one form only."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.domain import ids
from earnest.domain.errors import NotFound

RUN = uuid.UUID("018e5a3c-1234-7abc-8def-0123456789ab")

PREFIXES: tuple[ids.Prefix, ...] = ("run", "att", "op", "find")
prefixes = st.sampled_from(PREFIXES)
names = st.text(min_size=1, max_size=50)


def test_new_ids_are_ordered_by_time_and_never_the_same() -> None:
    made = [ids.new_id() for _ in range(1000)]
    assert made == sorted(made)
    assert len(set(made)) == 1000
    assert {one.version for one in made} == {7}


def test_tokens_are_random() -> None:
    assert ids.new_token().version == 4
    assert ids.new_token() != ids.new_token()


# These are stored: another form would make a second child, operation or attempt beside the first.
@pytest.mark.parametrize(
    ("derived", "expected"),
    [
        (ids.child_id(RUN, "ship"), "018e5a3c-1234-7568-93ca-82f93ba04bda"),
        (ids.operation_id(RUN, "refund"), "018e5a3c-1234-755e-884e-88d19b1c3e7b"),
        (ids.attempt_id(RUN, 3), "018e5a3c-1234-73ea-a419-11c3bc5a4fca"),
        (
            ids.standing_operation_id("shop", "alice", "refund", "4001/2"),
            "ed2047f8-e394-5289-8c44-aa154f4f3bac",
        ),
    ],
)
def test_a_derived_id_is_the_same_in_every_process_and_release(
    derived: uuid.UUID, expected: str
) -> None:
    assert str(derived) == expected


@given(names, names)
def test_ids_of_different_names_differ(one: str, other: str) -> None:
    same = one == other
    assert (ids.child_id(RUN, one) == ids.child_id(RUN, other)) is same
    assert (ids.operation_id(RUN, one) == ids.operation_id(RUN, other)) is same
    assert ids.child_id(RUN, one) != ids.operation_id(RUN, one)


@given(names, st.uuids(version=4))
def test_a_derived_id_stays_beside_its_source(name: str, source: uuid.UUID) -> None:
    derived = ids.child_id(source, name)
    assert derived.int >> 80 == source.int >> 80
    assert derived.version == 7
    assert derived.variant == uuid.RFC_4122


def test_parts_of_a_standing_operations_id_do_not_run_into_each_other() -> None:
    parts = [
        ("shop", "alice", "refund", "x"),
        ("shop", "alice", "refun", "dx"),
        ("shop", "alicer", "efund", "x"),
        ("shopa", "lice", "refund", "x"),
    ]
    assert len({ids.standing_operation_id(*each) for each in parts}) == len(parts)


@given(prefixes, st.uuids())
def test_what_is_shown_is_read_back(prefix: ids.Prefix, value: uuid.UUID) -> None:
    shown = ids.show(prefix, value)
    assert shown.startswith(f"{prefix}_")
    assert ids.read(prefix, shown) == value


SHOWN = ids.show("run", RUN)


@pytest.mark.parametrize(
    "text",
    [
        "",
        str(RUN),
        SHOWN.removeprefix("run_"),
        SHOWN.replace("run_", "op_"),
        SHOWN.upper(),
        SHOWN[:-1],
        f"{SHOWN}0",
        f" {SHOWN}",
        f"{SHOWN}\n",
        f"run_8{SHOWN.removeprefix('run_')[1:]}",
        "run_" + "\x00" * 26,
        "run_" + "ü" * 26,
    ],
    ids=repr,
)
def test_any_other_text_is_as_if_there_was_nothing(text: str) -> None:
    """Foreign, malformed and unknown ids look the same from outside."""
    with pytest.raises(NotFound) as refusal:
        ids.read("run", text)
    assert refusal.value.detail == f"no such run: {text[:80]!r}"


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        value = ids.read("run", text)
    except NotFound:
        return
    assert ids.show("run", value) == text


@pytest.mark.parametrize(
    ("prefix", "noun"), [("run", "run"), ("op", "operation"), ("att", "attempt")]
)
def test_what_is_not_there_is_called_by_its_noun(prefix: ids.Prefix, noun: str) -> None:
    with pytest.raises(NotFound, match=f"^no such {noun}: 'x'$"):
        ids.read(prefix, "x")


def test_a_long_text_is_shown_by_its_beginning() -> None:
    with pytest.raises(NotFound) as refusal:
        ids.read("run", "x" * 10_000)
    assert len(refusal.value.detail) < 120

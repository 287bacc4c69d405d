"""What other people's code raises stays where it was called, and can always be told."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from earnest.domain.foreign_errors import Exited, said_by
from earnest.domain.kept_error import MAX_DETAIL, kept_error
from earnest.engine.attempts.context import Parked
from earnest.engine.process.foreign_code import described, foreign_code, told_of

SECRET = "4111-1111-1111-1111"


class Odd(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it says nothing")

    __repr__ = __str__


class Rude(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def leave(*_: object) -> None:
    sys.exit(7)


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (Odd("x"), "Odd: x"),
    ],
)
def test_what_would_end_the_process_becomes_an_exception(raised: BaseException, shown: str) -> None:
    with pytest.raises(Exited) as ended, foreign_code:
        raise raised
    assert told_of(ended.value) == shown
    assert kept_error(ended.value)["detail"] == shown


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("x"),
        asyncio.CancelledError(),
        GeneratorExit(),
        Parked(),
        BaseExceptionGroup("branches", [Parked()]),
    ],
)
def test_errors_and_control_flow_pass_as_they_are(raised: BaseException) -> None:
    with pytest.raises(type(raised)) as ended, foreign_code:
        raise raised
    assert ended.value is raised


def test_an_interrupt_from_the_keyboard_passes() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), foreign_code:
        signal.raise_signal(signal.SIGINT)


def test_what_the_programs_own_signal_handler_raises_passes() -> None:
    signal.signal(signal.SIGTERM, leave)
    with pytest.raises(SystemExit), foreign_code:
        signal.raise_signal(signal.SIGTERM)


def test_a_keyboard_interrupt_that_code_raises_is_none() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(Exited), foreign_code:
        raise KeyboardInterrupt


def test_no_signal_is_heard_in_another_thread() -> None:
    signal.signal(signal.SIGTERM, leave)
    seen: list[BaseException] = []

    def work() -> None:
        try:
            with foreign_code:
                leave()
        except BaseException as error:
            seen.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [type(error) for error in seen] == [Exited]


@pytest.mark.parametrize("error", [Mute(), Rude()])
def test_an_error_whose_text_cannot_be_made_can_be_told(error: Exception) -> None:
    assert said_by(error).startswith("(its text cannot be made: ")
    assert kept_error(error)["detail"].startswith(f"{type(error).__name__}: (its text")
    assert type(error).__name__ in described(error)


def test_a_log_of_an_error_has_places_and_no_values() -> None:
    """P21: of a value that does not fit, too."""

    class Card(BaseModel):
        number: int

    def charge(card_number: str) -> None:
        Card.model_validate({"number": card_number})

    shown = described(caught(charge, SECRET))
    assert "ValidationError: does not fit at number" in shown
    assert "test_foreign_code.py:" in shown
    assert " in charge" in shown
    assert SECRET not in shown


def deep(levels: int) -> None:
    if not levels:
        raise ValueError("z" * 3_000_000)
    deep(levels - 1)


def chained(links: int) -> BaseException:
    error: BaseException = ValueError("first")
    for number in range(links):
        try:
            raise ValueError(number) from error
        except ValueError as next_one:
            error = next_one
    return error


def caught(function: Any, *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError("it raises")


@pytest.mark.parametrize("error", [caught(deep, 500), chained(200)])
def test_a_log_of_an_error_is_bounded(error: BaseException) -> None:
    shown = described(error)
    assert len(shown) < 40 * MAX_DETAIL
    assert shown.count("\n") < 60


def test_a_log_of_an_error_has_no_control_characters() -> None:
    shown = described(ValueError("a\0b\x1b[31m\ud800\nlevel=info all is well"))
    assert shown.isprintable()
    shown.encode()

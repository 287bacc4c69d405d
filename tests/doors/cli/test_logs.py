"""Logs hold ids and places, never payloads (P21)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from pydantic import BaseModel, ValidationError

from earnest.doors.cli import logs
from tests.doors.cli.program import logs_as_before

SECRET = "4111-1111-1111-1111"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with logs_as_before():
        yield


class Card(BaseModel):
    number: int


def failed_validation() -> ValidationError:
    try:
        Card.model_validate({"number": SECRET})
    except ValidationError as error:
        return error
    raise AssertionError("it does not fit")


def test_an_exception_is_logged_with_its_frames_and_without_their_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(logs.LogFormat.JSON)
    card_number = SECRET
    try:
        raise RuntimeError("the bank hung up") from failed_validation()
    except RuntimeError:
        structlog.get_logger("earnest.test").exception("call.failed", run_id="run_1")
    logged = json.loads(capsys.readouterr().err)
    assert (logged["event"], logged["run_id"], logged["level"]) == ("call.failed", "run_1", "error")
    assert "RuntimeError: the bank hung up" in logged["exception"]
    assert "test_logs.py" in logged["exception"]
    assert "after ValidationError" in logged["exception"]
    assert card_number not in str(logged)


@pytest.mark.parametrize("shape", logs.LogFormat)
def test_what_other_libraries_log_has_the_same_form(
    capsys: pytest.CaptureFixture[str], shape: logs.LogFormat
) -> None:
    logs.configure(shape)
    logging.getLogger("uvicorn.error").warning("something odd")
    logging.getLogger("uvicorn.error").info("something usual")
    [line] = capsys.readouterr().err.splitlines()
    assert "something odd" in line
    assert "uvicorn.error" in line


@pytest.mark.parametrize("shape", logs.LogFormat)
def test_a_warning_of_another_library_is_one_line_with_its_error(
    capsys: pytest.CaptureFixture[str], shape: logs.LogFormat
) -> None:
    """A pool of connections says so each time when its server was killed."""
    logs.configure(shape)
    try:
        raise ConnectionRefusedError(111, "Connection refused")
    except ConnectionRefusedError:
        logging.getLogger("asyncpg.pool").warning("not\nrestored \x1b[2J", exc_info=True)
    [line] = capsys.readouterr().err.splitlines()
    assert "not restored" in line
    assert "ConnectionRefusedError: [Errno 111] Connection refused" in line
    assert "test_logs.py" not in line
    assert "\x1b[2J" not in line


def test_an_error_of_another_library_is_logged_with_its_frames(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(logs.LogFormat.TEXT)
    try:
        raise RuntimeError("never retrieved")
    except RuntimeError:
        logging.getLogger("asyncio").error("a task failed", exc_info=True)
    assert "test_logs.py" in capsys.readouterr().err


def test_an_error_in_a_text_log_shows_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(logs.LogFormat.TEXT)
    try:
        raise failed_validation()
    except ValidationError:
        structlog.get_logger("earnest.test").exception("call.failed")
    logged = capsys.readouterr().err
    assert "does not fit at number" in logged
    assert SECRET not in logged

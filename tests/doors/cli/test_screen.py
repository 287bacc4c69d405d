"""What comes from outside is shown so that nothing in it orders a terminal about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from earnest.doors.cli import screen

NASTY = "a\x1b[2Jb\x9b2Jc\x7fd\u202ee\U000e0041f\r"


@pytest.mark.parametrize("show", [screen.print_json, screen.print_json_line])
def test_json_is_the_same_value_and_holds_nothing_that_a_terminal_obeys(
    show: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"told": [NASTY, "größer €"], NASTY: 1}
    show(value)
    written = capsys.readouterr().out
    assert json.loads(written) == value
    assert [one for one in written if not one.isprintable() and one != "\n"] == []
    assert "größer €" in written


@pytest.mark.parametrize(
    "show",
    [
        screen.write,
        lambda text: screen.say(screen.plain(text)),
        lambda text: screen.print_table(["told"], [[text]]),
        lambda text: screen.print_facts({"told": text, "in": {"it": text}}),
    ],
    ids=["write", "say", "table", "facts"],
)
def test_text_holds_nothing_that_a_terminal_obeys(
    show: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    show(NASTY)
    written = capsys.readouterr().out
    assert "2J" in written
    assert [one for one in written if not one.isprintable() and one != "\n"] == []

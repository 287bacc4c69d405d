"""Values given on the command line: JSON, and pairs of name and value."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import typer


def read_json(text: str, what: str) -> Any:
    """The value written as JSON; `-` reads standard input, `@FILE` a file."""
    try:
        return json.loads(_source(text), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise typer.BadParameter(
            f"{what} must be JSON, `-` for standard input, or @FILE ({error})"
        ) from error


def read_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` each."""
    split = [pair.partition("=") for pair in pairs]
    for name, equals, _ in split:
        if not name or not equals:
            raise typer.BadParameter("a label is written NAME=VALUE")
    return {name: value for name, _, value in split}


def _source(text: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if text.startswith("@"):
        return Path(text[1:]).read_text(encoding="utf-8")
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

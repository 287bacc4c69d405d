"""Named SQL: `-- name: claim_runs` starts a statement in a file of `sql/`.

The text reaches the server as it stands, so every statement can be copied into `psql` and
explained there. Parameters are `$1`, `$2` …; each file says what they are.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- name: ([a-z_]+)\n", re.MULTILINE)


def split(text: str) -> dict[str, str]:
    """The statements of one file by name. What stands before the first name is commentary."""
    parts = _NAME.split(text)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


@cache
def statements() -> dict[str, str]:
    """All statements of the engine's store. Raises `ValueError` if a name stands twice."""
    found: dict[str, str] = {}
    folder = resources.files("earnest.store") / "sql"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        for name, body in split(file.read_text(encoding="utf-8")).items():
            if name in found:
                raise ValueError(f"the statement {name} stands twice (again in {file.name})")
            found[name] = body
    return found


def sql(name: str) -> str:
    return statements()[name]

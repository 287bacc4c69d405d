"""What was submitted, as a test asks about it, and how it differs from what the test expects."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.errors import InvalidRequest
from earnest.domain.run import Run
from earnest.engine.process.engine import Engine
from earnest.engine.process.kinds import RunKind
from earnest.store import runs
from earnest.testing.any_loop import on_a_loop_aside

_ALL = """
SELECT r.*, e.status, e.version, e.fence, e.priority, e.failures, e.max_attempts, e.due_at,
       e.retry_at, e.deadline_at, e.cancel_requested, e.doubts, e.waiting_on, e.last_seq,
       e.started_at, e.finished_at, e.output, e.error
FROM run r JOIN execution e USING (scope_id, run_id) ORDER BY r.run_id
"""
_SHOWN = 5


def assert_submitted(
    engine: Engine,
    kind: RunKind[Any, Any] | str,
    *,
    input: Any = ...,
    key: str | EllipsisType | None = ...,
    count: int | None = None,
) -> list[Run]:
    """The runs of that kind with this input and key, in any scope, oldest first. There has to be
    one; with `count`, exactly so many. What is not given is not compared; `key=None` is a run
    without a key. Blocks; there is nothing to await. Raises `AssertionError` with the difference.
    """
    made = on_a_loop_aside(lambda: _all(engine))
    name = kind if isinstance(kind, str) else kind.name
    of_kind = [(run, one_key) for run, one_key in made if run.kind == name]
    wanted = ... if input is ... else _plain(engine, name, input)
    found = [
        run
        for run, one_key in of_kind
        if (wanted is ... or _is_input(engine, run, wanted)) and (key is ... or one_key == key)
    ]
    if len(found) == count or (count is None and found):
        return found
    asked = _asked(name, wanted, key)
    if not of_kind:
        raise AssertionError(f"{asked}: none of that kind was submitted{_others(made)}")
    number = "at least 1" if count is None else str(count)
    lines = [f"{asked}: {len(found)} instead of {number}; submitted were:"]
    raise AssertionError("\n".join([*lines, *_shown(of_kind, wanted, key)]))


async def _all(engine: Engine) -> list[tuple[Run, str | None]]:
    async with engine.database.connection() as tx:
        return [(runs.as_run(row), row["idempotency_key"]) for row in await tx.fetch(_ALL)]


def _plain(engine: Engine, name: str, value: Any) -> Any:
    """The input as it is stored: with the defaults of the kind's type, in plain JSON."""
    kind = engine.kinds.get(name)
    return value if kind is None else canonical.decode(kind.encode_input(value))


def _is_input(engine: Engine, run: Run, wanted: Any) -> bool:
    """What came through SQL is stored as it was given; it is compared as its type reads it."""
    if run.input == wanted:
        return True
    try:
        return bool(_plain(engine, run.kind, run.input) == wanted)
    except InvalidRequest:
        return False


def _asked(name: str, wanted: Any, key: str | EllipsisType | None) -> str:
    asked = f"runs of {name}"
    if key is not ...:
        asked += " without a key" if key is None else f" with key {key!r}"
    return asked if wanted is ... else f"{asked} with input {json.dumps(wanted, sort_keys=True)}"


def _others(made: Sequence[tuple[Run, str | None]]) -> str:
    kinds = Counter(run.kind for run, _ in made)
    named = ", ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
    return f"; there are {named}" if named else ", nor any other run"


def _shown(
    of_kind: Sequence[tuple[Run, str | None]], wanted: Any, key: str | EllipsisType | None
) -> list[str]:
    """The runs that there are, those with the key first, each with what differs."""
    by_key = sorted(of_kind, key=lambda pair: pair[1] != key)
    lines = []
    for run, one_key in by_key[:_SHOWN]:
        lines.append(f"  {ids.show('run', run.run_id)}, key {one_key!r}, {run.status}, input:")
        lines += [f"    {line}" for line in _difference(run.input, wanted)]
    if len(by_key) > _SHOWN:
        lines.append(f"  and {len(by_key) - _SHOWN} more")
    return lines


def _difference(stored: Any, wanted: Any) -> list[str]:
    """The stored input line by line; `-` stands before what was expected, `+` before what is."""
    lines = _lines(stored)
    if wanted is ... or wanted == stored:
        return lines
    return [line for line in difflib.ndiff(_lines(wanted), lines) if not line.startswith("?")]


def _lines(value: Any) -> list[str]:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).splitlines()

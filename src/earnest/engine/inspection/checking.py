"""Checking: would the code of this process break runs that are in flight?

Each of them is replayed (`replaying.py`) against what is recorded of it, in one read-only snapshot,
and judged:

* *fits*: the next attempt finds everything again that it asks for, up to where the record ends;
* *breaks*: it would be refused (`code_changed`), or its handler fails where it did not before;
* *unclear*: it could not be followed to the end of its record. It ran too long, or it asks for
  something new while something recorded has not been asked for. That is harmless where a step was
  put in between; where an operation was renamed, it would be sent a second time. Or it waits, and
  not for the signal that the run waits for: whoever sends that would send it in vain.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from earnest.domain import ids
from earnest.domain.errors import (
    ApprovalExpired,
    ApprovalRejected,
    Blocked,
    ChildFailed,
    CodeChanged,
    Failed,
    InvalidRequest,
    NotDone,
    Refused,
    SignalTimedOut,
)
from earnest.domain.run import FINAL, RunStatus
from earnest.engine.attempts.attempting import success, told_error
from earnest.engine.attempts.remembering import Memory
from earnest.engine.inspection.rehearsing import Stage
from earnest.engine.inspection.replaying import History, HistoryEnds, Replayed
from earnest.engine.process import binding
from earnest.engine.process.engine import Engine
from earnest.engine.process.kinds import RunKind
from earnest.engine.process.unchecked import no_longer_fits
from earnest.store import approvals, executions, histories
from earnest.store.database import Tx
from earnest.store.histories import InFlight

# Errors by which a handler says that its run ends badly, rather than that it failed to go on.
_SAID = (
    *(Refused, NotDone, ApprovalRejected, ApprovalExpired),
    *(Failed, ChildFailed, SignalTimedOut, Blocked),
)
_SHOWN = 5
_READ_AHEAD = 8


class Verdict(StrEnum):
    FITS = "fits"
    BREAKS = "breaks"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Asked:
    """Which runs to check: of these `kinds` (`None`: all), this `percent` of them, at most `limit`;
    each gets `seconds`. `known_only`: runs whose kind this process does not know are left to other
    programs; else they break."""

    kinds: Sequence[str] | None = None
    percent: int = 100
    limit: int = 10_000
    seconds: float = 5.0
    known_only: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """One run's verdict. `code` and `detail` say what breaks it or what is unclear; of one that
    fits, `detail` says how far its record goes."""

    scope_id: str
    run_id: uuid.UUID
    kind: str
    status: RunStatus
    verdict: Verdict
    code: str = ""
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "scope": self.scope_id,
            "run_id": ids.show("run", self.run_id),
            "kind": self.kind,
            "status": self.status.value,
            "verdict": self.verdict.value,
            "code": self.code,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class _Finding:
    verdict: Verdict
    code: str
    detail: str


def alone() -> AbstractContextManager[None]:
    """For a process that does nothing else: meanwhile a handler cannot act through Earnest in any
    thread of it, nor open Earnest anew. What tries it ends as a replay does."""
    return binding.refusing(HistoryEnds)


async def list_runs(engine: Engine, asked: Asked) -> list[InFlight]:
    """The runs in flight that are to be checked; those with most behind them first."""
    kinds = asked.kinds
    if asked.known_only:
        kinds = [name for name in engine.kinds if kinds is None or name in kinds]

    async def work(tx: Tx) -> list[InFlight]:
        return await histories.in_flight(tx, kinds, asked.percent, asked.limit)

    return await histories.in_snapshot(engine.database, work)


async def check(
    engine: Engine, runs: Sequence[InFlight], asked: Asked
) -> AsyncIterator[Checked | None]:
    """Checks them one after the other; `None` for one that has ended meanwhile. Changes nothing
    in the database and acts on nothing outside, except for what the handlers' own code does
    between what it asks its context for."""
    with Stage(engine, asked.seconds) as stage:
        for start in range(0, len(runs), _READ_AHEAD):
            some = runs[start : start + _READ_AHEAD]
            pasts = await asyncio.gather(*(read_history(engine, run) for run in some))
            for run, past in zip(some, pasts, strict=True):
                found = None if past is None else await _judge_run(engine, stage, past)
                yield None if found is None else _checked(run, found)


def ended_process(run: InFlight, how: str) -> Checked:
    """For whoever checks in a process of its own that was ended meanwhile."""
    detail = f"its handler ended the process {how}; a worker would end with it"
    return _checked(run, _Finding(Verdict.BREAKS, "process_ended", detail))


async def read_history(engine: Engine, run: InFlight) -> History | None:
    """What the run has behind it; `None` if it has ended."""

    async def work(tx: Tx) -> History | None:
        row = await histories.find(tx, run.scope_id, run.run_id)
        if row is None or row["status"] in FINAL:
            return None
        claimed = executions.as_claimed(row, row["fence"] + 1, ids.new_token())
        children = await histories.children(tx, run.scope_id, run.run_id)
        return History(
            claimed=claimed,
            attempted=row["fence"] > 0,
            memory=await Memory.read_in(tx, run.scope_id, run.run_id),
            children={child.run_id: child for child in children},
            error=row["error"],
            signals=frozenset(
                (wait.get("name", ""), wait.get("number", 0))
                for wait in row["waiting_on"] or ()
                if wait["kind"] == "signal"
            ),
            approvals={
                one.approval_id: one for one in await approvals.of_run(tx, run.scope_id, run.run_id)
            },
        )

    return await histories.in_snapshot(engine.database, work)


async def _judge_run(engine: Engine, stage: Stage, past: History) -> _Finding:
    kind = engine.kinds.get(past.claimed.kind)
    if kind is None:
        gone = past.claimed.kind
        detail = f"no loaded app has the kind {gone!r}; bring it back, or load its app too"
        return _Finding(Verdict.BREAKS, "unknown_kind", detail)
    try:
        value = kind.read_input(past.claimed.input)
    except InvalidRequest as misfit:
        return _breaks(no_longer_fits(kind, misfit))
    if not past.attempted:
        return _Finding(Verdict.FITS, "", "it was not attempted yet; its input fits")
    replayed = await stage.play(kind, value, past)
    if replayed is None:
        detail = f"its handler ran longer than {stage.seconds:g} s"
        return _Finding(Verdict.UNCLEAR, "too_long", detail)
    return _judge(stage, kind, past, replayed)


def _judge(stage: Stage, kind: RunKind[Any, Any], past: History, replayed: Replayed) -> _Finding:
    if replayed.error is not None:
        return _judge_error(replayed.error, past, replayed.left)
    if replayed.ends:
        return _judge_end(replayed)
    error = success(kind, replayed.output, stage.max_result_bytes).error
    if error is not None:
        return _Finding(Verdict.BREAKS, error["code"], error["detail"])
    if replayed.sent:
        detail = f"its handler ends without asking for what was done: {_named(replayed.sent)}"
        return _Finding(Verdict.UNCLEAR, "left_behind", detail)
    return _Finding(Verdict.FITS, "", "its handler ends")


def _judge_end(replayed: Replayed) -> _Finding:
    at = ", ".join(dict.fromkeys(end.what for end in replayed.ends))
    if any(end.unsettled for end in replayed.ends):
        return _Finding(Verdict.FITS, "", f"its record ends at {at}")
    if replayed.left:
        detail = (
            f"it asks for {at}, which is not recorded, and has not asked for "
            f"{_named(replayed.left)}; what was renamed would be done again"
        )
        return _Finding(Verdict.UNCLEAR, "left_behind", detail)
    if replayed.unheard and all(end.waits for end in replayed.ends):
        unheard = _named(replayed.unheard)
        detail = f"it waits for {unheard}, and would then stand at {at}: {unheard} may be in vain"
        return _Finding(Verdict.UNCLEAR, "waits_elsewhere", detail)
    return _Finding(Verdict.FITS, "", f"its record ends at {at}")


def _judge_error(error: BaseException, past: History, left: Sequence[str]) -> _Finding:
    told = told_error(error)
    if left:
        told["detail"] = f"{told['detail']} (before {_named(left)})"
        return _Finding(Verdict.BREAKS, told["code"], told["detail"])
    if isinstance(error, _SAID):
        return _Finding(Verdict.FITS, "", f"its handler ends it: {told['detail']}")
    as_before = past.error is not None and _is_same(told, past.error)
    if as_before and not isinstance(error, CodeChanged):
        return _Finding(Verdict.FITS, "", f"it fails as its last attempt did: {told['detail']}")
    return _Finding(Verdict.BREAKS, told["code"], told["detail"])


def _is_same(told: dict[str, Any], before: dict[str, Any]) -> bool:
    return (told["code"], told["detail"]) == (before.get("code"), before.get("detail"))


def _breaks(error: CodeChanged) -> _Finding:
    told = told_error(error)
    return _Finding(Verdict.BREAKS, told["code"], told["detail"])


def _named(left: Sequence[str]) -> str:
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return ", ".join(left[:_SHOWN]) + more


def _checked(run: InFlight, found: _Finding) -> Checked:
    return Checked(run.scope_id, run.run_id, run.kind, run.status, found.verdict, found.code,
                   found.detail)  # fmt: skip

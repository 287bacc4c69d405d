"""What only a client can meet, beside what the API refuses: see `earnest.domain.errors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from earnest.client.values import Run
from earnest.domain.errors import EarnestError
from earnest.domain.run import RunStatus


class OutcomeUnknown(EarnestError):
    """Neither done nor refused, as far as is known: no answer proves what came of the request.
    `fields["key"]` is the key to send it again with; its cause is what was told last. Whatever else
    a call that changes something raises is a refusal, and nothing was done."""

    code, status = "outcome_unknown", 503


class Unreachable(OutcomeUnknown):
    """There was no answer in time."""

    code = "unreachable"


class UnexpectedAnswer(OutcomeUnknown):
    """The answer is none that Earnest gives."""

    code, status = "unexpected_answer", 500


class DownloadDamaged(EarnestError):
    """The bytes that came are not those of the artifact."""

    code = "download_damaged"


class RunUnsuccessful(EarnestError):
    """The run ended without success. `run` is the run, whole; `fields` hold its error."""

    code = "run_unsuccessful"

    def __init__(self, detail: str, run: Run) -> None:
        super().__init__(detail, fields=_error_of(run))
        self.run = run

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.detail, self.run)


class RunFailed(RunUnsuccessful):
    """The run failed."""

    code = "run_failed"


class RunCancelled(RunUnsuccessful):
    """The run was cancelled."""

    code = "run_cancelled"


class RunBlocked(RunUnsuccessful):
    """A policy refused the run's work."""

    code = "run_blocked"


_ENDINGS: Mapping[RunStatus, type[RunUnsuccessful]] = {
    RunStatus.FAILED: RunFailed,
    RunStatus.CANCELLED: RunCancelled,
    RunStatus.BLOCKED: RunBlocked,
}


def output_of(run: Run) -> Any:
    """What a run that has ended came to: its output. Raises what it ended as, without success."""
    ending = _ENDINGS.get(run.status)
    if ending is None:
        return run.output
    error = run.error or {}
    told = ": ".join(str(error[name]) for name in ("code", "detail") if error.get(name))
    raise ending(f"{run.id} {run.status}" + (f": {told}" if told else ""), run)


def _error_of(run: Run) -> dict[str, Any]:
    return {"run_id": run.id, "run_status": run.status.value, "error": run.error}

"""The one path on which a fault rule meets an effect.

A provider hands over a call and the function that does it. Whether, when and with which answer it
is done is decided here, the same for all providers. The function must not await: recognising a
repetition, doing it and writing it into the truth log are one step, so two calls at once cannot
both do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import JSONResponse, PlainTextResponse, Response

from earnest.testing.simulator.connections import Drop
from earnest.testing.simulator.faults import EffectCall, FaultRules, Mode, Rule
from earnest.testing.simulator.truth import TruthLog

_ACT_AND_SPOIL: dict[Mode, Callable[[], Response]] = {
    Mode.ACCEPT_THEN_DROP: Drop,
    Mode.ERROR_AFTER: lambda: JSONResponse({"error": "fault: failed after doing it"}, 500),
    Mode.GARBAGE: lambda: PlainTextResponse("<html>all is well"),
}
_INSTEAD_OF_ACTING: dict[Mode, Callable[[], Response]] = {
    Mode.ERROR_BEFORE: lambda: JSONResponse({"error": "fault: failed before doing it"}, 500),
    Mode.REFUSE: lambda: JSONResponse({"error": "fault: refused, nothing was done"}, 422),
}


class Effects:
    """Does what providers are asked to do, under the fault rules in force."""

    def __init__(self, truth: TruthLog, faults: FaultRules) -> None:
        self.truth = truth
        self.faults = faults
        self._running: set[asyncio.Task[Response]] = set()

    async def perform(
        self,
        call: EffectCall,
        act: Callable[[], Response],
        call_back: Callable[[int], None] | None = None,
    ) -> Response:
        """Answer the call. What was begun is finished even if the caller goes away meanwhile.
        `call_back` is told, when it was done, how often the provider calls back."""
        rule = self.faults.take(call)
        times = 2 if rule is not None and rule.mode is Mode.DUPLICATE_CALLBACK else 1

        def done() -> Response:
            answer = act()
            if call_back is not None:
                call_back(times)
            return answer

        if rule is None:
            return done()
        task = asyncio.create_task(_behave(rule, done))
        self._running.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)


async def _behave(rule: Rule, act: Callable[[], Response]) -> Response:
    """Act and answer as the table in `faults` says."""
    delay_seconds = rule.delay_ms / 1000
    if spoilt := _ACT_AND_SPOIL.get(rule.mode):
        act()
        await asyncio.sleep(delay_seconds)
        return spoilt()
    await asyncio.sleep(delay_seconds)
    instead = _INSTEAD_OF_ACTING.get(rule.mode, act)
    return instead()

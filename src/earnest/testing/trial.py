"""One effect on trial: asked for by key, as a program does that was handled twice, and settled as
a worker would, while the far end misbehaves. The questions stand in `conformance`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from earnest.domain import ids
from earnest.domain.duration import duration
from earnest.domain.errors import EarnestError, InDoubt
from earnest.domain.operation import OperationState, Recovery
from earnest.engine.operations.standing import operation
from earnest.engine.process import binding
from earnest.engine.process.effects import Effect
from earnest.engine.process.engine import Engine
from earnest.store import operations
from earnest.testing.clock import HeldClock
from earnest.testing.draining import drain
from earnest.testing.dying import crash_at
from earnest.testing.far_ends import FarEnd

_KEY = "conformance"
_BEYOND = timedelta(minutes=10)


@dataclass(frozen=True)
class Trial:
    """The effect, what is asked of it and its far end."""

    effect: Effect[Any, Any]
    asked: Any
    far_end: FarEnd
    engine: Engine
    clock: HeldClock
    bound: binding.Binding = field(default_factory=binding.current)

    @property
    def recovery(self) -> Recovery:
        return Recovery(self.effect.recovery)

    @property
    def id(self) -> str:
        """What has to go along: the operation's id as the effect sees it."""
        return ids.show("op", self._operation_id())

    async def ask(self) -> Any:
        """The receipt. Raises what `earnest.operation` raises."""
        async with operation(_KEY, self.effect, self.asked) as receipt:
            return receipt

    async def try_to_ask(self) -> Any:
        """The receipt, or the error that was told."""
        try:
            return await self.ask()
        except EarnestError as error:
            return error

    async def state(self) -> OperationState:
        found = await operations.find(
            self.engine.database, self.bound.scope_id, self._operation_id()
        )
        assert found is not None, "it was asked for"
        return found.state

    async def was_doubted(self) -> bool:
        """Whether it was ever said that nobody knows."""
        scope_id, database = self.bound.scope_id, self.engine.database
        moves = await operations.moves(database, scope_id, self._operation_id())
        return any(move.state is OperationState.UNKNOWN for move in moves)

    async def settle(self) -> None:
        """What a worker does about it until an absence would be believed, and somewhat longer."""
        await drain(self.engine, self.clock, ahead=self._long())

    async def die_at(self, point: str) -> None:
        """Asked for by a process that is killed there."""
        await crash_at(self.engine, point, doing=self.ask)

    async def has_to_end_done(self) -> None:
        """It was done once, whatever was heard of it; that has to come out, or be in doubt where
        nobody can be asked. It must not be done again."""
        await self.try_to_ask()
        await self.settle()
        outcome = await self.try_to_ask()
        assert len(self.far_end.done()) == 1, f"it was done {len(self.far_end.done())} times"
        if self.recovery is Recovery.HOLD:
            assert isinstance(outcome, InDoubt), f"nobody can know, and it was told as {outcome!r}"
        else:
            assert not isinstance(outcome, EarnestError), f"it was done, and told as {outcome!r}"

    async def has_to_end_truthfully(self) -> None:
        """Done once with a receipt, or not done and in doubt; the first, where the effect has said
        that an absence can be believed or a call be repeated."""
        outcome = await self.try_to_ask()
        done = len(self.far_end.done())
        if isinstance(outcome, InDoubt):
            assert done == 0, f"it was done {done} times, and is told to be in doubt"
            assert not self._can_be_known(), "it stays in doubt although the effect can tell"
        else:
            assert not isinstance(outcome, EarnestError), f"it was told as {outcome!r}"
            assert done == 1, f"it was done {done} times"

    def _can_be_known(self) -> bool:
        believed = self.effect.dedupes and self.effect.absent_after is not None
        return self.recovery is Recovery.RESEND or (self.recovery is Recovery.LOOKUP and believed)

    def _long(self) -> timedelta:
        after = self.effect.absent_after
        return _BEYOND if after is None else duration(after) + _BEYOND

    def _operation_id(self) -> Any:
        bound = self.bound
        return ids.standing_operation_id(bound.scope_id, bound.principal_id, self.effect.kind, _KEY)

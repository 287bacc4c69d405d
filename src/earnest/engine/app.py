"""`App`: where a user registers run kinds and effects, and submits runs from any program."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, overload

from earnest.domain import ids
from earnest.domain.duration import Duration, duration
from earnest.domain.errors import SettingInvalid
from earnest.domain.run import RetryPolicy
from earnest.engine.process import as_sent, binding
from earnest.engine.process.effects import Effect, require_effect
from earnest.engine.process.inboxes import Inboxes, InboxHandler
from earnest.engine.process.kinds import Kinds, RunKind, check_name, make_kind, require_kind
from earnest.engine.runs import submitting

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")

Handler = Callable[[Any, InputT], Awaitable[OutputT]]
PlainHandler = Callable[[Any, InputT], OutputT]


class Register(typing.Protocol):
    """The decorator that `App.run` makes: async handlers and plain ones alike."""

    @overload
    def __call__(self, handler: Handler[InputT, OutputT], /) -> RunKind[InputT, OutputT]: ...
    @overload
    def __call__(self, handler: PlainHandler[InputT, OutputT], /) -> RunKind[InputT, OutputT]: ...


class App:
    """A named set of run kinds, and later the way to submit them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kinds = Kinds()
        self.effects: dict[str, Effect[Any, Any]] = {}
        self.inboxes = Inboxes()

    def run(
        self,
        name: str,
        *,
        lane: str = "default",
        max_attempts: int = 3,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        retry_first: Duration = "2s",
        retry_longest: Duration = "10m",
        on_unknown: Literal["wait", "fail"] = "wait",
        pure: bool = False,
        approver_may_be_proposer: bool = True,
    ) -> Register:
        """Registers a handler. `timeout` bounds one attempt, `deadline` the run from submit to end;
        `on_unknown="fail"` ends a run over a doubt instead of waiting (the operation stays on the
        desk); `pure` says that the handler acts on nothing outside. `approver_may_be_proposer`: set
        it to `False`, and whoever asked for a run decides nothing that it puts to people, by
        whichever token."""
        check_name("a run kind", name)
        check_name(f"{name}: a lane", lane)
        if not 1 <= max_attempts <= 1000:
            raise SettingInvalid(f"{name}: max_attempts must be between 1 and 1000")
        retry = RetryPolicy(max_attempts, duration(retry_first), 2.0, duration(retry_longest))

        def register(handler: Callable[..., Any]) -> RunKind[Any, Any]:
            kind = make_kind(
                name,
                handler,
                lane=lane,
                retry=retry,
                timeout=None if timeout is None else duration(timeout),
                deadline=None if deadline is None else duration(deadline),
                on_unknown=on_unknown,
                pure=pure,
                approver_may_be_proposer=approver_may_be_proposer,
            )
            self.kinds.add(kind)
            return kind

        return typing.cast(Register, register)

    def effect(self, effect: Effect[Any, Any]) -> None:
        """Provides the instance to use for its kind, for effects that need a client or a setting;
        others are made without arguments. Raises `SettingInvalid`."""
        require_effect(effect)
        if isinstance(effect, type):
            raise SettingInvalid(
                f"app.effect takes an instance: app.effect({effect.__name__}(...)); a class that "
                "is made without arguments need not be given"
            )
        self.effects[effect.kind] = effect

    def inbox(self, name: str) -> Callable[[InboxHandler], InboxHandler]:
        """Registers `async def (tx, message)` for signed messages from outside. Each is handled
        once, in the transaction `tx`; what is returned (`Settles`, `Refutes`, `Signals`, several of
        them or nothing) is done in it."""

        def register(handler: InboxHandler) -> InboxHandler:
            self.inboxes.add(name, handler)
            return handler

        return register

    async def submit(
        self,
        kind: RunKind[InputT, Any],
        input: InputT,
        *,
        key: str | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        labels: dict[str, str] | None = None,
    ) -> str:
        """Submits a run through the open binding and returns its id. The same key and input give
        the same run (P7); a default that is spelled out makes another input. Raises as
        `submitting.submit` does."""
        require_kind(kind)
        bound = binding.current()
        request = submitting.Request(
            kind.name,
            input,
            key,
            priority=priority,
            not_before=not_before,
            labels=labels or {},
            fingerprint_of=as_sent.request(kind.name, input) if key is not None else None,
        )
        submitted = await submitting.submit(
            bound.engine, bound.scope_id, bound.principal_id, request
        )
        return ids.show("run", submitted.run.run_id)

    async def submit_many(
        self,
        kind: RunKind[InputT, Any],
        inputs: Sequence[InputT],
        *,
        keys: Sequence[str | None] | None = None,
    ) -> list[str]:
        """Submits many runs in one commit, all or none; returns their ids in order."""
        require_kind(kind)
        bound = binding.current()
        found = await submitting.submit_many(
            bound.engine, bound.scope_id, bound.principal_id, kind.name, inputs, keys
        )
        return [ids.show("run", run_id) for run_id in found]

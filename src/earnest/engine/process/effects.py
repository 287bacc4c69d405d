"""Effects: how a side effect on the outside world is described so that it can be done once.

A user subclasses `Effect[Request, Receipt]`, names its `kind` and its `recovery`, and writes
`submit`, the one call. Subclasses with a kind are found by it in any process that imports them, so
that a look-up can be made by a process that never ran the handler.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, get_args

import asyncpg
from pydantic import TypeAdapter

from earnest.domain import ids
from earnest.domain.duration import Duration, duration
from earnest.domain.errors import SettingInvalid
from earnest.domain.operation import EffectTerms, Operation, Recovery, may_send_again

RequestT = TypeVar("RequestT")
ReceiptT = TypeVar("ReceiptT")


@dataclass(frozen=True, slots=True)
class Call:
    """What an effect sees of its operation. `id` is the key to send along: the same in every
    attempt. `sends` counts this one. `scope_id` and `run_id` are for logs on the provider's
    side."""

    id: str
    scope_id: str
    operation_id: uuid.UUID
    run_id: uuid.UUID | None
    name: str
    sends: int
    first_begun_at: datetime | None
    resource_key: str | None


def as_call(operation: Operation) -> Call:
    return Call(
        id=ids.show("op", operation.operation_id),
        scope_id=operation.scope_id,
        operation_id=operation.operation_id,
        run_id=operation.run_id,
        name=operation.name,
        sends=operation.send_count,
        first_begun_at=operation.first_begun_at,
        resource_key=operation.resource_key,
    )


@dataclass(frozen=True, slots=True)
class Listed:
    """One thing that a provider says it did, for a sweep. `external_ref` is its name there, the
    same as `external_ref(receipt)` gives; `at` when it was done, by the provider's clock, with its
    zone; `operation_id` the `call.id` that was sent along, where the provider tells it. What else
    it tells helps: `receipt` is what the call would have answered, and settles a doubt; `request`
    what was asked for; `scope_id` is `call.scope_id`, where one account serves several scopes."""

    at: datetime
    external_ref: str | None = None
    operation_id: str | None = None
    receipt: Any = None
    request: Any = None
    scope_id: str | None = None

    def __post_init__(self) -> None:
        at: object = self.at
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise ValueError("Listed needs `at` as a datetime with its zone")
        if self.external_ref is None and self.operation_id is None and self.receipt is None:
            raise ValueError("Listed needs the provider's name for it, or the operation's id")


class Effect(Generic[RequestT, ReceiptT]):
    """A side effect that is sent at most once.

    `recovery` says what may be done when the outcome is in doubt: `resend` (the provider honours
    `call.id` as an idempotency key for `window`), `lookup` (it can be asked about `call.id`) or
    `hold` (neither; a person decides). `dedupes`: the provider recognises a repeated id.
    `absent_after`: how long an absence may still turn into a presence there; without it an absence
    is never taken as proof. `timeout` bounds the one call. `keeps_resource`: the resource key stays
    taken after success, until the app frees it.
    """

    kind: ClassVar[str] = ""
    recovery: ClassVar[str] = "hold"
    provider: ClassVar[str] = ""
    window: ClassVar[Duration | None] = None
    dedupes: ClassVar[bool] = False
    absent_after: ClassVar[Duration | None] = None
    timeout: ClassVar[Duration] = "30s"
    keeps_resource: ClassVar[bool] = True

    _known: ClassVar[dict[str, type[Effect[Any, Any]]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.kind:
            cls._check_terms()
            Effect._known[cls.kind] = cls

    @classmethod
    def find(cls, kind: str) -> type[Effect[Any, Any]] | None:
        """The effect of that kind, if its module was imported in this process."""
        return Effect._known.get(kind)

    @classmethod
    def make(cls) -> Effect[Any, Any] | None:
        """An instance made without arguments; `None` where the class needs some."""
        required = [
            parameter
            for parameter in inspect.signature(cls).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        return None if required else cls()

    @classmethod
    def known_kinds(cls) -> list[str]:
        return sorted(Effect._known)

    async def prepare(self, request: RequestT) -> object:
        """A read-only look at the provider before the call: price, existence, plan. May raise
        `Refused`; then nothing was sent."""
        return None

    async def submit(self, call: Call, request: RequestT) -> ReceiptT:
        """The one call. Raise `Refused` when the provider definitely refused and `NotSent` when
        surely nothing left; failures of httpx and httpx2 are told apart by themselves. Anything
        else that is raised puts the operation in doubt."""
        raise NotImplementedError

    async def lookup(self, call: Call) -> ReceiptT | None:
        """Asks the provider about `call.id`: its receipt, `None` when it is absent there. Raise
        `Inconclusive` (or anything) when it cannot tell."""
        raise NotImplementedError

    def matches(self, request: RequestT, receipt: ReceiptT) -> bool:
        """Whether a receipt found by look-up is this request's. The default trusts the id."""
        return True

    async def record(self, tx: asyncpg.Connection, call: Call, receipt: ReceiptT) -> None:
        """The app's own rows, in the same commit as the receipt, however it was reached."""

    async def released(self, tx: asyncpg.Connection, call: Call, reason: str) -> None:
        """The app's own rows, in the commit that establishes that it did not happen."""

    def list_since(self, time: datetime) -> AsyncIterator[Listed]:
        """All that the provider did since then, in any order, page by page: what lets a sweep
        compare both sides. Written as an async generator. What it leaves out is taken for not done,
        so raise if it cannot be listed to the end; leave out what this installation did not ask
        for, where others use the same account."""
        raise NotImplementedError

    def external_ref(self, receipt: ReceiptT) -> str | None:
        """The provider's own name for what it did; by default the receipt's `id`."""
        found = receipt.get("id") if isinstance(receipt, dict) else getattr(receipt, "id", None)
        return None if found is None else str(found)

    def has_own(self, hook: str) -> bool:
        """Whether the app wrote that one: `record`, `released`, `lookup` or `list_since`."""
        return getattr(getattr(self, hook), "__func__", None) is not getattr(Effect, hook)

    @cached_property
    def request_type(self) -> TypeAdapter[Any]:
        return TypeAdapter(self._type_arguments()[0])

    @cached_property
    def receipt_type(self) -> TypeAdapter[Any]:
        return TypeAdapter(self._type_arguments()[1])

    def terms(self) -> EffectTerms:
        """What is stored with each operation of this effect."""
        return EffectTerms(
            kind=self.kind,
            recovery=Recovery(self.recovery),
            provider=self.provider or self.kind.split(".", maxsplit=1)[0],
            window=_optional(self.window),
            dedupes=self.dedupes,
            absent_after=_optional(self.absent_after),
            timeout=duration(self.timeout),
            keeps_resource=self.keeps_resource,
            has_released_hook=self.has_own("released"),
        )

    @classmethod
    def _type_arguments(cls) -> tuple[Any, Any]:
        for ancestor in cls.__mro__:
            for generic in getattr(ancestor, "__orig_bases__", ()):
                arguments = get_args(generic)
                if len(arguments) == 2 and not any(isinstance(a, TypeVar) for a in arguments):
                    return arguments[0], arguments[1]
        return Any, Any

    @classmethod
    def _check_terms(cls) -> None:
        kind: object = cls.kind
        if not isinstance(kind, str) or len(kind) > 100 or not kind.isprintable():
            raise SettingInvalid(
                f"an effect's kind has up to 100 printable characters: {str(kind)[:80]!r}"
            )
        if cls.recovery not in tuple(Recovery):
            raise SettingInvalid(
                f"{cls.kind}: recovery {cls.recovery!r} is none of resend, lookup, hold"
            )
        if (cls.recovery == Recovery.RESEND) != (cls.window is not None):
            raise SettingInvalid(
                f"{cls.kind}: a resend effect says for how long the provider honours its key "
                "(window=), and no other effect does"
            )
        if cls.recovery == Recovery.LOOKUP and cls.lookup is Effect.lookup:
            raise SettingInvalid(f"{cls.kind}: a lookup effect needs the method lookup")
        if inspect.isfunction(cls.submit) and cls.submit is Effect.submit:
            raise SettingInvalid(f"{cls.kind}: an effect needs the method submit")
        cls._check_spans()

    @classmethod
    def _check_spans(cls) -> None:
        try:
            timeout, window = duration(cls.timeout), _optional(cls.window)
            _optional(cls.absent_after)
        except SettingInvalid as error:
            raise SettingInvalid(f"{cls.kind}: {error.detail}") from error
        if not timeout:
            raise SettingInvalid(f"{cls.kind}: a timeout of {cls.timeout!r} leaves no time to call")
        began = datetime.fromtimestamp(0, UTC)
        if window is not None and not may_send_again(began, began, window, timeout):
            raise SettingInvalid(
                f"{cls.kind}: the window of {cls.window!r} is shorter than one call of up to "
                f"{cls.timeout!r}; nothing could be sent again"
            )


def require_effect(effect: object) -> None:
    """Raises `SettingInvalid` for what is neither an effect's class nor an instance of one, and
    for an effect without a kind: a class that others only build on."""
    own = effect if isinstance(effect, type) else type(effect)
    if not issubclass(own, Effect):
        raise SettingInvalid(
            f"{own.__name__} is no effect; name a subclass of earnest.Effect or its instance"
        )
    if not effect.kind:  # type: ignore[attr-defined]
        raise SettingInvalid(
            f'the effect {own.__name__} has no kind; name it in the class: kind = "bank.refund"'
        )


def _optional(value: Duration | None) -> timedelta | None:
    return None if value is None else duration(value)

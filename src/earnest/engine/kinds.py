"""Run kinds: the handlers a user writes, with what they promise about themselves.

`App` collects them by decorator. Input and output types are read from the handler's annotations;
what does not fit is refused when a run is submitted, not when it runs.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from earnest.domain import canonical
from earnest.domain.duration import Duration, duration
from earnest.domain.errors import InvalidRequest, SettingInvalid, UnknownKind
from earnest.domain.run import RetryPolicy
from earnest.engine.effects import Effect

P = ParamSpec("P")
InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")


@dataclass(frozen=True, slots=True)
class RunKind(Generic[InputT, OutputT]):
    """A registered kind of run: its handler, its types and its terms."""

    name: str
    handler: Callable[..., Any]
    input_type: TypeAdapter[InputT]
    output_type: TypeAdapter[OutputT]
    is_async: bool
    lane: str = "default"
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: timedelta | None = None
    deadline: timedelta | None = None
    on_unknown: Literal["wait", "fail"] = "wait"
    pure: bool = False

    def encode_input(self, value: Any) -> bytes:
        """The canonical bytes of an input that fits. Raises `InvalidRequest` naming each place."""
        try:
            checked = self.input_type.validate_python(value)
            return canonical.encode(self.input_type.dump_python(checked, mode="json"))
        except ValidationError as error:
            raise InvalidRequest(
                f"the input does not fit {self.name}: {_places(error)}",
                fields={"errors": _errors(error)},
            ) from error
        except canonical.NotJson as error:
            raise InvalidRequest(f"the input of {self.name} cannot be stored: {error}") from error

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the handler as the plain function it is; for tests of one's own code."""
        return self.handler(*arguments, **named)


class Kinds(Mapping[str, RunKind[Any, Any]]):
    """The kinds a process knows, by name."""

    def __init__(self, kinds: Iterable[RunKind[Any, Any]] = ()) -> None:
        self._by_name: dict[str, RunKind[Any, Any]] = {}
        for kind in kinds:
            self.add(kind)

    def add(self, kind: RunKind[Any, Any]) -> None:
        if kind.name in self._by_name:
            raise SettingInvalid(f"the run kind {kind.name} is registered twice; rename one")
        self._by_name[kind.name] = kind

    def require(self, name: str) -> RunKind[Any, Any]:
        kind = self._by_name.get(name)
        if kind is None:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise UnknownKind(f"no run kind {name[:80]!r} is registered; known are: {known}")
        return kind

    def lanes(self) -> list[str]:
        return sorted({"default", *(kind.lane for kind in self._by_name.values())})

    def __getitem__(self, name: str) -> RunKind[Any, Any]:
        return self._by_name[name]

    def __iter__(self) -> typing.Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


Handler = Callable[[Any, InputT], Awaitable[OutputT]]
PlainHandler = Callable[[Any, InputT], OutputT]


class _Register(typing.Protocol):
    """The decorator that `App.run` makes: async handlers and plain ones alike."""

    @overload
    def __call__(self, handler: Handler[InputT, OutputT], /) -> RunKind[InputT, OutputT]: ...
    @overload
    def __call__(self, handler: PlainHandler[InputT, OutputT], /) -> RunKind[InputT, OutputT]: ...


def make_kind(name: str, handler: Callable[..., Any], **terms: Any) -> RunKind[Any, Any]:
    """Reads the types of a handler `(ctx, input) -> output`. Raises `SettingInvalid` when it has
    no such shape or types that cannot be JSON."""
    parameters = list(inspect.signature(handler).parameters.values())
    if len(parameters) != 2:
        raise SettingInvalid(f"the handler of {name} must take (ctx, input), both positional")
    try:
        hints = typing.get_type_hints(handler)
    except NameError as error:
        raise SettingInvalid(
            f"the annotations of {name}'s handler cannot be read: {error}"
        ) from None
    try:
        input_type: TypeAdapter[Any] = TypeAdapter(hints.get(parameters[1].name, Any))
        output_type: TypeAdapter[Any] = TypeAdapter(hints.get("return", Any))
    except PydanticUserError as error:
        raise SettingInvalid(f"the types of {name}'s handler cannot be JSON: {error}") from error
    is_async = inspect.iscoroutinefunction(handler)
    return RunKind(name, handler, input_type, output_type, is_async, **terms)


class App:
    """A named set of run kinds, and later the way to submit them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kinds = Kinds()
        self.effects: dict[str, Effect[Any, Any]] = {}

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
    ) -> _Register:
        """Registers a handler. `timeout` bounds one attempt, `deadline` the run from submit to end;
        `on_unknown="fail"` ends a run over a doubt instead of waiting (the operation stays on the
        desk); `pure` says that the handler acts on nothing outside."""
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
            )
            self.kinds.add(kind)
            return kind

        return typing.cast(_Register, register)

    def effect(self, effect: Effect[Any, Any]) -> None:
        """Provides the instance to use for its kind, for effects that need a client or a setting;
        others are made without arguments."""
        self.effects[effect.kind] = effect


def _places(error: ValidationError) -> str:
    shown = [
        f"{'/'.join(map(str, item['loc'])) or 'the whole'}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False)
    ]
    return "; ".join(shown[:5]) + (f"; and {len(shown) - 5} more" if len(shown) > 5 else "")


def _errors(error: ValidationError) -> list[dict[str, str]]:
    return [
        {
            "pointer": "".join(f"/{part}" for part in ("input", *item["loc"])),
            "detail": item["msg"],
            "code": item["type"],
        }
        for item in error.errors(include_url=False, include_input=False)
    ]

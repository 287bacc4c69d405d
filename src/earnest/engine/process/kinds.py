"""Run kinds: the handlers a user writes, with what they promise about themselves.

Input and output types are read from the handler's annotations;
what does not fit is refused when a run is submitted, not when it runs.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from earnest.domain import canonical
from earnest.domain.errors import InvalidRequest, SettingInvalid, UnknownKind
from earnest.domain.foreign_errors import said_by
from earnest.domain.run import RetryPolicy
from earnest.engine.process.foreign_code import foreign_code
from earnest.engine.process.typed_json import encode_typed, misfit

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
    approver_may_be_proposer: bool = True

    def encode_input(self, value: Any) -> bytes:
        """The canonical bytes of an input that fits. Raises `InvalidRequest` naming each place."""
        try:
            with foreign_code:
                checked = self.input_type.validate_python(value)
                return encode_typed(self.input_type, checked)
        except ValidationError as error:
            raise self._misfit(error) from error
        except (canonical.NotJson, ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"the input of {self.name} cannot be stored: {misfit(error)}"
            ) from error

    def read_input(self, stored: Any) -> InputT:
        """What the handler gets of an input as it is stored. Raises `InvalidRequest` as above."""
        try:
            with foreign_code:
                return self.input_type.validate_python(stored)
        except ValidationError as error:
            raise self._misfit(error) from error

    def _misfit(self, error: ValidationError) -> InvalidRequest:
        return InvalidRequest(
            f"the input does not fit {self.name}: {misfit(error)}",
            fields={"errors": _errors(error)},
        )

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the handler as the plain function it is; for tests of one's own code."""
        return self.handler(*arguments, **named)


def require_kind(kind: object) -> None:
    """Raises `InvalidRequest` for what is no registered handler, such as a name or a function."""
    if not isinstance(kind, RunKind):
        raise InvalidRequest(
            f"{said_by(kind)[:80]!r} is no run kind; give the handler that `@app.run(...)` "
            "decorates, or `app.kinds[...]`"
        )


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


def check_name(what: str, name: str) -> None:
    """Raises `SettingInvalid` for what is no name of a kind or lane."""
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise SettingInvalid(f"{what} has a name of 1 to 100 printable characters: {name[:80]!r}")


def make_kind(name: str, handler: Callable[..., Any], **terms: Any) -> RunKind[Any, Any]:
    """Reads the types of a handler `(ctx, input) -> output`. Raises `SettingInvalid` when it has
    no such shape or types that cannot be JSON."""
    parameters = list(inspect.signature(handler).parameters.values())
    if len(parameters) != 2:
        raise SettingInvalid(f"the handler of {name} must take (ctx, input), both positional")
    try:
        hints = typing.get_type_hints(handler, include_extras=True)
    except NameError as error:
        raise SettingInvalid(
            f"the annotations of {name}'s handler cannot be read: {error}"
        ) from None
    try:
        input_type: TypeAdapter[Any] = TypeAdapter(hints.get(parameters[1].name, Any))
        output_type: TypeAdapter[Any] = TypeAdapter(hints.get("return", Any))
    except PydanticUserError as error:
        why = str(error).partition("\n")[0]
        raise SettingInvalid(f"the types of {name}'s handler cannot be JSON: {why}") from error
    is_async = inspect.iscoroutinefunction(handler)
    return RunKind(name, handler, input_type, output_type, is_async, **terms)


def _errors(error: ValidationError) -> list[dict[str, str]]:
    return [
        {
            "pointer": "".join(f"/{_escaped(part)}" for part in ("input", *item["loc"])),
            "detail": item["msg"],
            "code": item["type"],
        }
        for item in error.errors(include_url=False, include_input=False)
    ]


def _escaped(part: str | int) -> str:
    """A part of a JSON pointer (RFC 6901)."""
    return str(part).replace("~", "~0").replace("/", "~1")

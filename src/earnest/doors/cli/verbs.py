"""How a command is written: as a function with its own options only, and what it acts on.

    @desk_command(commands, "list")
    async def list_tokens(desk: Desk, live: Live = False, limit: Limit = 50) -> None:
        \"\"\"What its help says.\"\"\"

On the command line it has the shared options, too. What it returns is the exit code; `None` is
`ExitCode.OK`. The function itself stays as it is written, and others may call it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias

import typer

from earnest.doors.cli.exits import ExitCode
from earnest.doors.cli.opening import Desk, Lobby, Opening
from earnest.doors.cli.options import Apps, DatabaseUrl, Home, Json, Scope, Yes, told
from earnest.doors.cli.parts import Parts

P = ParamSpec("P")

Ended: TypeAlias = ExitCode | None
DeskVerb: TypeAlias = Callable[Concatenate[Desk, P], Coroutine[Any, Any, Ended]]
LobbyVerb: TypeAlias = Callable[Concatenate[Lobby, P], Coroutine[Any, Any, Ended]]
OpeningVerb: TypeAlias = Callable[Concatenate[Opening, P], Ended]


def desk_command(
    commands: typer.Typer,
    name: str | None = None,
    *,
    loads_apps: bool = False,
    has_json: bool = True,
    unless_yes: str | None = None,
) -> Callable[[DeskVerb[P]], DeskVerb[P]]:
    """For what is done in a scope. `unless_yes` says what comes of it: without `--yes` the command
    is refused with that, before anything is opened."""
    asks = [] if unless_yes is None else [_option("yes", Yes, False)]
    shared = _shared(loads_apps=loads_apps, has_json=has_json)

    def add(verb: DeskVerb[P]) -> DeskVerb[P]:
        act: Callable[..., Coroutine[Any, Any, Ended]] = verb

        def call(opening: Opening, **given: Any) -> Ended:
            if asks and not given.pop("yes"):
                raise typer.BadParameter(f"{unless_yes}; say --yes if you mean it")
            return opening.at_desk(lambda desk: act(desk, **given))

        commands.command(name)(_command(verb, shared, call, asks))
        return verb

    return add


def lobby_command(
    commands: typer.Typer, name: str | None = None
) -> Callable[[LobbyVerb[P]], LobbyVerb[P]]:
    """For what is about no scope."""

    def add(verb: LobbyVerb[P]) -> LobbyVerb[P]:
        act: Callable[..., Coroutine[Any, Any, Ended]] = verb

        def call(opening: Opening, **given: Any) -> Ended:
            return opening.in_lobby(lambda lobby: act(lobby, **given))

        commands.command(name)(_command(verb, _shared(has_scope=False), call))
        return verb

    return add


def opening_command(
    commands: typer.Typer,
    name: str | None = None,
    *,
    loads_apps: bool = False,
    has_scope: bool = True,
) -> Callable[[OpeningVerb[P]], OpeningVerb[P]]:
    """For what has something to do before the database is opened, such as to read what it was given
    or refuse it, and then calls `opening` itself."""
    shared = _shared(loads_apps=loads_apps, has_scope=has_scope)

    def add(verb: OpeningVerb[P]) -> OpeningVerb[P]:
        commands.command(name)(_command(verb, shared, verb))
        return verb

    return add


def _command(
    verb: Callable[..., object],
    shared: Sequence[Parameter],
    call: Callable[..., Ended],
    more: Sequence[Parameter] = (),
) -> Callable[..., None]:
    """What typer is shown and calls: the parameters of the verb, and `more`, are for `call`; of the
    shared ones an `Opening` is made."""
    first, *own = inspect.signature(verb, eval_str=True).parameters.values()

    @wraps(verb)
    def command(context: typer.Context, **given: Any) -> None:
        options = {one.name: given.pop(one.name) for one in shared}
        code = call(_opening(context.obj, **options), **given)
        if code is not None:
            raise typer.Exit(code)

    context = first.replace(name="context", annotation=typer.Context)
    parameters = [context, *own, *more, *shared]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _opening(
    parts: Parts,
    *,
    home: Path | None,
    database_url: str | None,
    app: list[str] | None = None,
    scope: str | None = None,
    as_json: bool = False,
) -> Opening:
    return Opening(as_json, parts, told(home, database_url, app), scope)


def _shared(
    *, loads_apps: bool = False, has_scope: bool = True, has_json: bool = True
) -> list[Parameter]:
    return [
        *([_option("app", Apps)] if loads_apps else ()),
        _option("home", Home),
        _option("database_url", DatabaseUrl),
        *([_option("scope", Scope)] if has_scope else ()),
        *([_option("as_json", Json, False)] if has_json else ()),
    ]


def _option(name: str, annotation: Any, default: object = None) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)

"""`earnest tokens`: by what people and programs come in through the API. A text is shown once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earnest.doors.cli import screen
from earnest.doors.cli.opening import Desk, Opening
from earnest.doors.cli.options import Limit
from earnest.doors.cli.verbs import desk_command, opening_command

if TYPE_CHECKING:
    from earnest.domain.access import Token
    from earnest.engine.process.tokens import Issued

commands = typer.Typer(help="Tokens: who may come in through the API.")

Given = Annotated[
    str,
    typer.Argument(metavar="TOKEN", help="The token, or its id: what follows `ern_`."),
]
Days = Annotated[
    float | None,
    typer.Option("--days", min=0, help="How long it is good; until revoked if not given."),
]
_COLUMNS = ("id", "principal", "roles", "name", "created", "expires", "revoked", "used on")


@opening_command(commands)
def issue(
    opening: Opening,
    principal: Annotated[str, typer.Argument(help="Who shall hold the token.")],
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            help="member, approver, operator or admin; may be repeated. Makes the principal, or "
            "gives it exactly these; not needed for one that is there.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="What the token is for, such as a program's name.")
    ] = None,
    days: Days = None,
    new_scope: Annotated[
        bool, typer.Option("--new-scope", help="Make the scope if it is not there.")
    ] = False,
) -> None:
    """Give a principal a new token. It is shown once."""
    good_for = None if days is None else timedelta(days=days)

    async def act(desk: Desk) -> None:
        from earnest.domain.access import NewToken
        from earnest.engine.process import principals, tokens

        if role:
            await principals.ensure_principal(
                desk.engine, desk.scope, principal, role, by=desk.actor
            )
        new = NewToken(principal, name, good_for)
        _tell(desk, await tokens.issue(desk.engine, desk.actor, new))

    opening.at_desk(act, makes_scope=new_scope)


@desk_command(commands, "list")
async def list_tokens(
    desk: Desk,
    principal: Annotated[
        str | None, typer.Option("--principal", help="Only those of this one.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Only those that open something now.")
    ] = False,
    limit: Limit = 50,
) -> None:
    """List the scope's tokens, newest first; never their texts."""
    from earnest.engine.process import tokens

    found = await tokens.list_tokens(desk.engine, desk.actor, principal, None, limit, live=live)
    desk.print_rows(_COLUMNS, found, _row, desk.shown.show_token)


@desk_command(commands)
async def rotate(
    desk: Desk,
    token: Given,
    overlap: Annotated[
        int,
        typer.Option(
            "--overlap", min=0, metavar="SECONDS", help="How long the old one stays good."
        ),
    ] = 600,
) -> None:
    """Replace a token's secret: the new token is shown once, and the old one ends after the
    overlap. Idempotency keys belong to the principal and stay good."""
    from earnest.engine.process import tokens

    rotation = tokens.Rotation(timedelta(seconds=overlap))
    _tell(desk, await tokens.rotate(desk.engine, desk.actor, _id_of(token), rotation))


@desk_command(commands)
async def revoke(desk: Desk, token: Given) -> None:
    """Take a token's power away. Harmless when repeated."""
    from earnest.engine.process import tokens

    token_id = _id_of(token)
    await tokens.revoke(desk.engine, desk.actor, token_id)
    desk.print_line(
        {"scope": desk.scope, "revoked": token_id}, f"token {screen.plain(token_id)} is revoked"
    )


def _id_of(token: str) -> str:
    return token.removeprefix("ern_").partition("_")[0]


def _tell(desk: Desk, made: Issued) -> None:
    if not desk.as_json:
        typer.echo(made.text)
        return
    shown: Mapping[str, Any] = desk.shown.show_token(made.token)
    named = {"scope": desk.scope, "principal": made.token.principal_id}
    screen.print_json({**shown, **named, "token": made.text})


def _row(one: Token) -> tuple[object, ...]:
    return (
        one.token_id,
        one.principal_id,
        " ".join(one.roles),
        one.name,
        one.created_at,
        one.expires_at,
        one.revoked_at,
        one.used_on,
    )

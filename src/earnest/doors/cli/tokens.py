"""`earnest tokens`: who may come in through the API. A scope is made with its first token."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from earnest.doors.cli import screen
from earnest.doors.cli.opening import Desk, at_desk
from earnest.doors.cli.options import DatabaseUrl, Home, Json, Scope, told

commands = typer.Typer(help="Tokens: who may come in through the API.")


@commands.command()
def issue(
    context: typer.Context,
    principal: Annotated[str, typer.Argument(help="Who shall hold the token.")],
    role: Annotated[
        list[str],
        typer.Option("--role", help="member, approver, operator or admin; may be repeated."),
    ],
    days: Annotated[
        float | None,
        typer.Option("--days", min=0, help="How long it is good; until revoked if not given."),
    ] = None,
    new_scope: Annotated[
        bool, typer.Option("--new-scope", help="Make the scope if it is not there.")
    ] = False,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Give a principal these roles and a new token. The token is shown once."""
    good_for = None if days is None else timedelta(days=days)

    async def act(desk: Desk) -> None:
        from earnest.engine.process import principals, tokens

        await principals.ensure_principal(desk.engine, desk.scope, principal, role)
        token = await tokens.issue_token(desk.engine, desk.scope, principal, good_for=good_for)
        if as_json:
            screen.print_json({"scope": desk.scope, "principal": principal, "token": token})
        else:
            typer.echo(token)

    at_desk(context, told(home, database_url, None), scope, act, makes_scope=new_scope)


@commands.command()
def revoke(
    context: typer.Context,
    token: Annotated[str, typer.Argument(help="The token, or its id: what follows `ern_`.")],
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Take a token's power away. Harmless when repeated."""
    token_id = token.removeprefix("ern_").partition("_")[0]

    async def act(desk: Desk) -> None:
        from earnest.engine.process import tokens

        await tokens.revoke_token(desk.engine, desk.scope, token_id)
        if as_json:
            screen.print_json({"scope": desk.scope, "revoked": token_id})
        else:
            screen.say(f"token {screen.plain(token_id)} is revoked")

    at_desk(context, told(home, database_url, None), scope, act)

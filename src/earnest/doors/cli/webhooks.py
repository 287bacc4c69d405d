"""`earnest webhooks`: who is told what happens in a scope. A secret is shown once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from earnest.domain import ids
from earnest.doors.cli import screen
from earnest.doors.cli.opening import Desk, at_desk
from earnest.doors.cli.options import DatabaseUrl, Home, Json, Limit, Scope, Yes, told

if TYPE_CHECKING:
    from earnest.engine.messages.subscribing import Subscribed
    from earnest.store.sinks import Sink

commands = typer.Typer(help="Webhooks: who is told what happens in a scope.")

WebhookId = Annotated[
    str, typer.Argument(metavar="WEBHOOK", help="The webhook's id, such as sink_01….")
]
Types = Annotated[
    list[str],
    typer.Option("--type", help="A type such as run.succeeded, refund.* or *; may be repeated."),
]
Overlap = Annotated[
    float,
    typer.Option(
        "--overlap-hours", min=0, help="How long the secret of before is good, too. 0: ends now."
    ),
]
COLUMNS = ("id", "kind", "address", "types", "state", "why", "created")


@commands.command()
def add(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="Where to: https://host/path.")],
    type_: Types,
    description: Annotated[str, typer.Option("--description")] = "",
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Add a webhook. It is told what happens from now on; its secret is shown once."""

    async def act(desk: Desk) -> None:
        from earnest.engine.messages import subscribing

        asked = subscribing.Subscription(url, type_, description)
        _tell(desk, await subscribing.add_webhook(desk.engine, desk.actor, asked), as_json)

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command("list")
def list_webhooks(
    context: typer.Context,
    limit: Limit = 50,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """List the scope's webhooks, the oldest first."""

    async def act(desk: Desk) -> None:
        from earnest.store import sinks

        found = await sinks.listed(desk.engine.database, desk.scope, "webhook", None, limit)
        if as_json:
            screen.print_json({"items": [desk.shown.show_webhook(one) for one in found]})
        else:
            screen.print_table(COLUMNS, [row(one) for one in found])

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command("set")
def change(
    context: typer.Context,
    webhook: WebhookId,
    state: Annotated[
        str | None,
        typer.Option("--state", help="active; paused: everything waits; disabled: nothing does."),
    ] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="These types instead; may be repeated.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="Another address.")] = None,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Change a webhook's state, types or address."""

    async def act(desk: Desk) -> None:
        from earnest.engine.messages import subscribing
        from earnest.store.sinks import SinkChange

        to = SinkChange(address=url, types=type_ or None, state=state)
        changed = await subscribing.change_sink(
            desk.engine, desk.actor, ids.read("sink", webhook), to
        )
        _tell(desk, subscribing.Subscribed(changed, None), as_json)

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command()
def rotate(
    context: typer.Context,
    webhook: WebhookId,
    overlap_hours: Overlap = 24,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Make a new secret; it is shown once. Meanwhile the one before signs, too."""

    async def act(desk: Desk) -> None:
        from earnest.engine.messages import subscribing

        overlap = timedelta(hours=overlap_hours)
        made = await subscribing.rotate_secret(
            desk.engine, desk.actor, ids.read("sink", webhook), overlap
        )
        _tell(desk, made, as_json)

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command("test")
def send_test(
    context: typer.Context,
    webhook: WebhookId,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Send a message of the type `webhook.test`, on the way that all others take."""

    async def act(desk: Desk) -> None:
        from earnest.engine.messages import subscribing

        sent = await subscribing.send_test(desk.engine, desk.actor, ids.read("sink", webhook))
        shown = ids.show("dlv", sent)
        if as_json:
            screen.print_json({"delivery_id": shown})
        else:
            screen.say(f"{shown} is on its way; `earnest outbox list` shows what did not arrive")

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command()
def remove(
    context: typer.Context,
    webhook: WebhookId,
    yes: Yes = False,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Remove a webhook with all that waits for it."""
    if not yes:
        raise typer.BadParameter("what waits for it goes with it; say --yes if you mean it")

    async def act(desk: Desk) -> None:
        from earnest.engine.messages import subscribing

        await subscribing.remove_sink(desk.engine, desk.actor, ids.read("sink", webhook))
        if as_json:
            screen.print_json({"removed": webhook})
        else:
            screen.say(f"webhook {screen.plain(webhook)} is removed")

    at_desk(context, told(home, database_url, None), scope, act)


def row(sink: Sink) -> tuple[object, ...]:
    return (
        ids.show("sink", sink.sink_id),
        sink.kind,
        sink.address,
        ", ".join(sink.types),
        sink.state,
        sink.why,
        sink.created_at,
    )


def _tell(desk: Desk, made: Subscribed, as_json: bool) -> None:
    shown = dict(desk.shown.show_webhook(made.sink))
    if made.secret is not None:
        shown["secret"] = made.secret
    if as_json:
        screen.print_json(shown)
    else:
        screen.print_facts(shown)

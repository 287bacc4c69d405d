"""`earnest outbox`: what waits to be delivered, what could not be, and telling a NATS server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from earnest.domain import ids
from earnest.doors.cli import screen, webhooks
from earnest.doors.cli.opening import Desk, at_desk
from earnest.doors.cli.options import DatabaseUrl, Home, Json, Limit, Scope, Yes, told
from earnest.doors.cli.webhooks import Types

if TYPE_CHECKING:
    from earnest.store.messages import Delivery, DeliveryFilter

commands = typer.Typer(help="The outbox: what waits to be delivered, and what could not be.")
nats = typer.Typer(help="Telling the deployment's NATS server.", no_args_is_help=True)
commands.add_typer(nats, name="nats")

OfSink = Annotated[
    str | None, typer.Option("--sink", metavar="SINK", help="Only of this sink or webhook.")
]
OfType = Annotated[str | None, typer.Option("--type", help="Only of this type.")]
_COLUMNS = ("id", "sink", "type", "run", "seq", "state", "attempts", "next", "status", "error")


@commands.command("list")
def list_pending(
    context: typer.Context,
    sink: OfSink = None,
    type_: OfType = None,
    limit: Limit = 50,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """List what has not arrived yet, the oldest first."""

    async def act(desk: Desk) -> None:
        from earnest.store import messages

        only = _only(sink, type_)
        found = await messages.pending(desk.engine.database, desk.scope, only, None, limit)
        _tell(desk, found, as_json)

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command("dead-letters")
def list_dead(
    context: typer.Context,
    sink: OfSink = None,
    type_: OfType = None,
    limit: Limit = 50,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """List what could not be delivered, the oldest first."""

    async def act(desk: Desk) -> None:
        from earnest.engine.messages import dead_letters

        only = _only(sink, type_)
        found = await dead_letters.dead_letters(desk.engine, desk.actor, only, None, limit)
        _tell(desk, found, as_json)

    at_desk(context, told(home, database_url, None), scope, act)


@commands.command()
def replay(
    context: typer.Context,
    delivery: Annotated[
        list[str] | None, typer.Argument(metavar="DELIVERY", help="Dead letters by id.")
    ] = None,
    sink: OfSink = None,
    type_: OfType = None,
    yes: Yes = False,
    limit: Limit = 1000,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Send dead letters again: those named, or all that match the filter."""
    if not delivery and (not yes or not (sink or type_)):
        raise typer.BadParameter("name dead letters, or a filter (--sink, --type) with --yes")

    async def act(desk: Desk) -> None:
        from earnest.engine.messages import dead_letters

        wanted = [ids.read("dlv", one) for one in delivery or ()]
        if not wanted:
            only = _only(sink, type_)
            dead = await dead_letters.dead_letters(desk.engine, desk.actor, only, None, limit)
            wanted = [one.delivery_id for one in dead]
        with screen.progress("replaying", len(wanted)) as advance:
            found = []
            for one in wanted:
                found.append(await dead_letters.replay(desk.engine, desk.actor, one))
                advance()
        _tell(desk, found, as_json)

    at_desk(context, told(home, database_url, None), scope, act)


@nats.command("add")
def add_nats(
    context: typer.Context,
    type_: Types,
    prefix: Annotated[
        str, typer.Option("--prefix", help="How subjects begin: PREFIX.<scope>.<type>.")
    ] = "earnest",
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Tell the NATS server that EARNEST_NATS_URL names what happens in a scope from now on."""

    async def act(desk: Desk) -> None:
        from earnest.engine.messages import subscribing

        asked = subscribing.Subscription(prefix, type_)
        made = await subscribing.add_nats(desk.engine, desk.actor, asked)
        shown = ids.show("sink", made.sink.sink_id)
        if as_json:
            screen.print_json({"id": shown, "prefix": prefix, "types": list(type_)})
        else:
            screen.say(f"{shown} tells {screen.plain(prefix)}.{desk.scope.replace('.', '~')}.>")

    at_desk(context, told(home, database_url, None), scope, act)


@nats.command("list")
def list_nats(
    context: typer.Context,
    limit: Limit = 50,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """List what the NATS server is told of a scope."""

    async def act(desk: Desk) -> None:
        from earnest.store import sinks

        found = await sinks.listed(desk.engine.database, desk.scope, "nats", None, limit)
        if as_json:
            items = [
                {
                    "id": ids.show("sink", one.sink_id),
                    "prefix": one.address,
                    "types": list(one.types),
                    "state": one.state,
                }
                for one in found
            ]
            screen.print_json({"items": items})
        else:
            screen.print_table(webhooks.COLUMNS, [webhooks.row(one) for one in found])

    at_desk(context, told(home, database_url, None), scope, act)


@nats.command("remove")
def remove_nats(
    context: typer.Context,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="Its id, such as sink_01….")],
    yes: Yes = False,
    home: Home = None,
    database_url: DatabaseUrl = None,
    scope: Scope = None,
    as_json: Json = False,
) -> None:
    """Tell the NATS server nothing more, with all that waits for it."""
    webhooks.remove(context, sink, yes, home, database_url, scope, as_json)


def _only(sink: str | None, type_: str | None) -> DeliveryFilter:
    from earnest.store.messages import DeliveryFilter

    return DeliveryFilter(None if sink is None else ids.read("sink", sink), type_)


def _tell(desk: Desk, found: list[Delivery], as_json: bool) -> None:
    if as_json:
        screen.print_json({"items": [desk.shown.show_delivery(one) for one in found]})
    else:
        screen.print_table(_COLUMNS, [_row(one) for one in found])


def _row(delivery: Delivery) -> tuple[object, ...]:
    message = delivery.message
    return (
        ids.show("dlv", delivery.delivery_id),
        ids.show("sink", delivery.sink_id),
        message.type,
        None if message.run_id is None else ids.show("run", message.run_id),
        message.seq,
        delivery.state,
        delivery.attempts,
        delivery.due_at if delivery.state == "pending" else None,
        delivery.last_status,
        delivery.last_error,
    )

"""`earnest outbox`: what waits to be delivered, what could not be, and telling a NATS server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from earnest.domain import ids
from earnest.doors.cli import screen, webhooks
from earnest.doors.cli.opening import Desk, Opening
from earnest.doors.cli.options import Limit, Yes
from earnest.doors.cli.verbs import desk_command, opening_command
from earnest.doors.cli.webhooks import Types

if TYPE_CHECKING:
    from earnest.store.messages import Delivery, DeliveryFilter
    from earnest.store.sinks import Sink

commands = typer.Typer(help="The outbox: what waits to be delivered, and what could not be.")
nats = typer.Typer(help="Telling the deployment's NATS server.", no_args_is_help=True)
commands.add_typer(nats, name="nats")

OfSink = Annotated[
    str | None, typer.Option("--sink", metavar="SINK", help="Only of this sink or webhook.")
]
OfType = Annotated[str | None, typer.Option("--type", help="Only of this type.")]
_COLUMNS = ("id", "sink", "type", "run", "seq", "state", "attempts", "next", "status", "error")


@desk_command(commands, "list")
async def list_pending(
    desk: Desk, sink: OfSink = None, type_: OfType = None, limit: Limit = 50
) -> None:
    """List what has not arrived yet, the oldest first."""
    from earnest.store import messages

    only = _only(sink, type_)
    _tell(desk, await messages.pending(desk.engine.database, desk.scope, only, None, limit))


@desk_command(commands, "dead-letters")
async def list_dead(
    desk: Desk, sink: OfSink = None, type_: OfType = None, limit: Limit = 50
) -> None:
    """List what could not be delivered, the oldest first."""
    from earnest.engine.messages import dead_letters

    only = _only(sink, type_)
    _tell(desk, await dead_letters.dead_letters(desk.engine, desk.actor, only, None, limit))


@opening_command(commands)
def replay(
    opening: Opening,
    delivery: Annotated[
        list[str] | None, typer.Argument(metavar="DELIVERY", help="Dead letters by id.")
    ] = None,
    sink: OfSink = None,
    type_: OfType = None,
    yes: Yes = False,
    limit: Limit = 1000,
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
        _tell(desk, found)

    opening.at_desk(act)


@desk_command(nats, "add")
async def add_nats(
    desk: Desk,
    type_: Types,
    prefix: Annotated[
        str, typer.Option("--prefix", help="How subjects begin: PREFIX.<scope>.<type>.")
    ] = "earnest",
) -> None:
    """Tell the NATS server that EARNEST_NATS_URL names what happens in a scope from now on."""
    from earnest.engine.messages import subscribing

    asked = subscribing.Subscription(prefix, type_)
    made = await subscribing.add_nats(desk.engine, desk.actor, asked)
    shown = ids.show("sink", made.sink.sink_id)
    desk.print_line(
        {"id": shown, "prefix": prefix, "types": list(type_)},
        f"{shown} tells {screen.plain(prefix)}.{desk.scope.replace('.', '~')}.>",
    )


@desk_command(nats, "list")
async def list_nats(desk: Desk, limit: Limit = 50) -> None:
    """List what the NATS server is told of a scope."""
    from earnest.store import sinks

    found = await sinks.listed(desk.engine.database, desk.scope, "nats", None, limit)
    desk.print_rows(webhooks.COLUMNS, found, webhooks.row, _nats_object)


@desk_command(nats, "remove", unless_yes=webhooks.LOST_WITH_IT)
async def remove_nats(
    desk: Desk,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="Its id, such as sink_01….")],
) -> None:
    """Tell the NATS server nothing more, with all that waits for it."""
    await webhooks.remove(desk, sink)


def _nats_object(sink: Sink) -> dict[str, object]:
    return {
        "id": ids.show("sink", sink.sink_id),
        "prefix": sink.address,
        "types": list(sink.types),
        "state": sink.state,
    }


def _only(sink: str | None, type_: str | None) -> DeliveryFilter:
    from earnest.store.messages import DeliveryFilter

    return DeliveryFilter(None if sink is None else ids.read("sink", sink), type_)


def _tell(desk: Desk, found: list[Delivery]) -> None:
    desk.print_rows(_COLUMNS, found, _row, desk.shown.show_delivery)


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

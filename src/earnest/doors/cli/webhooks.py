"""`earnest webhooks`: who is told what happens in a scope. A secret is shown once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from earnest.domain import ids
from earnest.doors.cli import screen
from earnest.doors.cli.opening import Desk
from earnest.doors.cli.options import Limit
from earnest.doors.cli.verbs import desk_command

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
LOST_WITH_IT = "what waits for it goes with it"
COLUMNS = ("id", "kind", "address", "types", "state", "why", "created")


@desk_command(commands)
async def add(
    desk: Desk,
    url: Annotated[str, typer.Argument(help="Where to: https://host/path.")],
    type_: Types,
    description: Annotated[str, typer.Option("--description")] = "",
) -> None:
    """Add a webhook. It is told what happens from now on; its secret is shown once."""
    from earnest.engine.messages import subscribing

    asked = subscribing.Subscription(url, type_, description)
    _tell(desk, await subscribing.add_webhook(desk.engine, desk.actor, asked))


@desk_command(commands, "list")
async def list_webhooks(desk: Desk, limit: Limit = 50) -> None:
    """List the scope's webhooks, the oldest first."""
    from earnest.store import sinks

    found = await sinks.listed(desk.engine.database, desk.scope, "webhook", None, limit)
    desk.print_rows(COLUMNS, found, row, desk.shown.show_webhook)


@desk_command(commands, "set")
async def change(
    desk: Desk,
    webhook: WebhookId,
    state: Annotated[
        str | None,
        typer.Option("--state", help="active; paused: everything waits; disabled: nothing does."),
    ] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="These types instead; may be repeated.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="Another address.")] = None,
) -> None:
    """Change a webhook's state, types or address."""
    from earnest.engine.messages import subscribing
    from earnest.store.sinks import SinkChange

    to = SinkChange(address=url, types=type_ or None, state=state)
    changed = await subscribing.change_sink(desk.engine, desk.actor, ids.read("sink", webhook), to)
    _tell(desk, subscribing.Subscribed(changed, None))


@desk_command(commands)
async def rotate(desk: Desk, webhook: WebhookId, overlap_hours: Overlap = 24) -> None:
    """Make a new secret; it is shown once. Meanwhile the one before signs, too."""
    from earnest.engine.messages import subscribing

    sink, overlap = ids.read("sink", webhook), timedelta(hours=overlap_hours)
    _tell(desk, await subscribing.rotate_secret(desk.engine, desk.actor, sink, overlap))


@desk_command(commands, "test")
async def send_test(desk: Desk, webhook: WebhookId) -> None:
    """Send a message of the type `webhook.test`, on the way that all others take."""
    from earnest.engine.messages import subscribing

    sent = await subscribing.send_test(desk.engine, desk.actor, ids.read("sink", webhook))
    shown = ids.show("dlv", sent)
    desk.print_line(
        {"delivery_id": shown},
        f"{shown} is on its way; `earnest outbox list` shows what did not arrive",
    )


@desk_command(commands, unless_yes=LOST_WITH_IT)
async def remove(desk: Desk, webhook: WebhookId) -> None:
    """Remove a webhook with all that waits for it."""
    from earnest.engine.messages import subscribing

    await subscribing.remove_sink(desk.engine, desk.actor, ids.read("sink", webhook))
    desk.print_line({"removed": webhook}, f"webhook {screen.plain(webhook)} is removed")


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


def _tell(desk: Desk, made: Subscribed) -> None:
    secret = {} if made.secret is None else {"secret": made.secret}
    desk.print_facts({**desk.shown.show_webhook(made.sink), **secret})

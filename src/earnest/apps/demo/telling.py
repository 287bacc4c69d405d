"""What the demo says at a terminal."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from earnest.doors.cli import screen

HAPPENS = {
    "run.submitted": "it is asked for; from now on it is not forgotten",
    "attempt.started": "a worker takes it up",
    "operation.reserved": "what shall be sent is stored",
    "operation.submitting": "stored: from here on it may have happened. Then the bank is called",
    "operation.unknown": "nobody knows whether it happened; nothing is sent again",
    "operation.submitted": "the receipt is stored",
    "operation.resolved": "the doubt is settled by evidence",
    "attempt.lost": "the worker is gone",
    "run.unknown": "the run waits for a proof",
    "run.resumed": "the run goes on",
    "run.succeeded": "done",
}
"""What an event of the engine means, in plain words."""


def tell_where(url: str, home: Path) -> None:
    """Where everything is."""
    screen.say(f"[bold]Earnest[/] answers at [bold]{url}[/], its documentation at {url}/docs")
    screen.say(f"Tokens and process numbers are in {screen.plain(home / 'demo.json')}")


def tell_what_to_try(home: Path) -> None:
    """Three things to try, and how to end."""
    program = _program()
    here = f"--home {shlex.quote(str(home))}"
    refund = '{"order_id": 1003, "amount": "20.00", "bank": "keyed"}'
    lines = [
        "",
        "Three things to try in another terminal:",
        screen.plain(f"  {program} runs submit demo.refund '{refund}' --watch {here}"),
        screen.plain(f"  {program} runs list {here}"),
        screen.plain(f"  {program} operations list {here}"),
        "",
        "[dim]Ctrl-C stops it all; nothing is lost.[/]",
    ]
    screen.say("\n".join(lines))


def tell_again(name: str, pid: int | None) -> None:
    screen.say(f"[dim]the {name} had ended and was started again, pid {pid}[/]")


def _program() -> str:
    """What to type to start this program."""
    started_as = Path(sys.argv[0])
    return str(started_as) if started_as.name == "earnest" else "python -m earnest"


def tell_chapter(title: str) -> None:
    screen.say(f"\n[bold]{title}[/]\n")


def tell(line: str) -> None:
    screen.say(f"  {line}")


def tell_event(kind: str) -> None:
    words = HAPPENS.get(kind)
    if words is not None:
        screen.say(f"  [cyan]{kind:<22}[/] {words}")


def tell_blow(line: str) -> None:
    screen.say(f"  [bold red]{line}[/]")


def tell_count(order: int, count: int) -> None:
    colour = "green" if count == 1 else "red"
    screen.say(
        f"  [bold {colour}]the bank's own log: order {order} was paid {count}"
        f" {'time' if count == 1 else 'times'}[/]"
    )

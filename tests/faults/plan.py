"""What a case asks for, what has to be asked meanwhile, and how each run must end.

A plan is the same whatever is killed: that every run ends as planned proves that nothing was lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.faults.workload import PRICE, Bank

ACTIVE = frozenset({"queued", "running", "waiting"})
BANKS: tuple[Bank, ...] = ("keyed", "queryable", "opaque")
ALWAYS = 1_000_000


@dataclass(frozen=True)
class Planned:
    """One run to submit under `key`, and its end: status, the error's code if there must be one,
    the output if it is known before, and how many refunds the bank must have made for it.

    `fault` is the bank's misbehaviour towards this order and for how many calls. `asks` are verbs
    to be asked once the run is in one of the given statuses, in order. `retried`: a person retries
    it, and it succeeds then. `person_decides`: the bank's answers never settle a doubt (that a
    repeated call is refused says nothing of the first)."""

    key: str
    kind: str
    input: Any = None
    status: str = "succeeded"
    codes: tuple[str, ...] = ()
    output: Any = None
    refunds: int = 0
    fault: tuple[str, int] | None = None
    asks: tuple[tuple[str, frozenset[str], Any], ...] = ()
    retried: bool = False
    person_decides: bool = False


@dataclass(frozen=True)
class Plan:
    bank: Bank
    runs: tuple[Planned, ...] = field(default_factory=tuple)

    def of(self, key: str) -> Planned:
        return next(planned for planned in self.runs if planned.key == key)


def make_plan(bank: Bank, name: str, random_: random.Random) -> Plan:
    """`name` is unlike any other plan's; orders are told apart by it at the bank."""
    runs = [*_paid(bank, name), *_refused(bank, name), *_asked_to_end(), *_others(random_)]
    runs += _put_to_people(bank, name)
    if bank == "opaque":
        runs += _abandoned(name)
    if bank == "keyed":
        runs += _stuck(name)
    random_.shuffle(runs)
    return Plan(bank, tuple(runs))


def _paid(bank: Bank, name: str) -> Iterator[Planned]:
    """Refunds that succeed, some after the bank's answer was lost or told nothing."""
    for number in (1, 2):
        order_id = f"{name}-order-{number}"
        output = {"price": PRICE, "echoed": order_id}
        order = {"order_id": order_id, "bank": bank}
        yield Planned(f"order-{number}", "order", order, output=output, refunds=1)
    for key, mode in (
        ("dropped-1", "accept_then_drop"),
        ("dropped-2", "accept_then_drop"),
        ("failed-1", "error_before"),
        ("failed-2", "error_before"),
    ):
        order = {"order_id": f"{name}-{key}", "bank": bank}
        yield Planned(key, "refund", order, refunds=1, fault=(mode, 1))
    yield Planned("plain", "plain", {"order_id": f"{name}-plain", "bank": bank}, refunds=1)


def _refused(bank: Bank, name: str) -> Iterator[Planned]:
    """Refunds that the bank refuses until a person tries again."""
    for number in (1, 2):
        yield Planned(
            f"refused-{number}",
            "refund",
            {"order_id": f"{name}-refused-{number}", "bank": bank},
            status="failed",
            codes=("refused", "not_done"),
            fault=("refuse", ALWAYS),
            asks=(("retry", frozenset({"failed"}), None),),
            retried=True,
            person_decides=True,
        )


def _put_to_people(bank: Bank, name: str) -> Iterator[Planned]:
    """Refunds about which somebody says yes, no, or nothing in time."""
    for key, decision in (("yes-1", "approve"), ("yes-2", "approve"), ("no", "reject")):
        yes = decision == "approve"
        yield Planned(
            key,
            "approved",
            {"order_id": f"{name}-{key}", "bank": bank},
            status="succeeded" if yes else "failed",
            codes=() if yes else ("approval_rejected",),
            refunds=1 if yes else 0,
            asks=(("decide", frozenset({"waiting"}), decision),),
        )
    order = {"order_id": f"{name}-undecided", "bank": bank}
    yield Planned("undecided", "undecided", order, status="failed", codes=("approval_expired",))


def _asked_to_end() -> Iterator[Planned]:
    for key, kind, when in (
        ("endless", "endless", "running"),
        ("parked", "parked", "waiting"),
        ("family", "family", "waiting"),
    ):
        asks = (("cancel", frozenset({when}), None),)
        yield Planned(key, kind, status="cancelled", asks=asks)


def _others(random_: random.Random) -> Iterator[Planned]:
    yield Planned("echo", "echo", "said", output="said")
    yield Planned("flaky", "flaky", output="at last")
    for number in (1, 2):
        yield Planned(
            f"expiring-{number}", "expiring", status="failed", codes=("deadline_exceeded",)
        )
    when = random_.choice((ACTIVE, frozenset({"waiting"})))
    asks = tuple(("signal", when, payload) for payload in ("one", "two"))
    yield Planned("signalled", "signalled", output=["one", "two"], asks=asks)


def _abandoned(name: str) -> Iterator[Planned]:
    """Cancelled in doubt: the refund stays on the desk until a person settles it."""
    order = {"order_id": f"{name}-abandoned", "bank": "opaque"}
    asks = (("cancel", frozenset({"unknown"}), None),)
    yield Planned(
        "abandoned", "refund", order, status="cancelled", refunds=1,
        fault=("accept_then_drop", 1), asks=asks,
    )  # fmt: skip


def _stuck(name: str) -> Iterator[Planned]:
    """A bank that never answers about these orders, however often they are sent again."""
    for number in (1, 2):
        order = {"order_id": f"{name}-stuck-{number}", "bank": "keyed"}
        yield Planned(
            f"stuck-{number}", "refund", order, refunds=1,
            fault=("accept_then_drop", ALWAYS), person_decides=True,
        )  # fmt: skip

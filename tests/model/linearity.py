"""Whether what many callers heard of a run at the same time fits one order of its moves.

The witness of that order are the run's events, which are numbered under its lock. Folded, they give
the state after each number. Then every call must find its place: one that moved the run at the
number of its event, one that only heard something at a number whose state says so. Both must fit
the time in which the call was under way: not before what had been answered when it began, not
after what began when it had been answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class State:
    """A run as its events tell it."""

    status: str = "none"
    fence: int = 0
    cancel_requested: bool = False

    @property
    def final(self) -> bool:
        return self.status in ("succeeded", "failed", "cancelled", "blocked")


@dataclass(frozen=True)
class Told:
    """One event: its type and the attempt that it names."""

    type: str
    attempt: int = 0


@dataclass(frozen=True)
class Call:
    """One call about one run, from `began` to `ended` on a counter that all callers share."""

    verb: str
    began: int
    ended: int
    answer: str
    fence: int = 0
    number: int = 0


# What an event asks of the state before it, and what it makes of it.
_Rule = tuple[Callable[[State, Told], bool], Callable[[State, Told], State]]


def _to(status: str, *sources: str) -> _Rule:
    return (
        lambda state, _: state.status in sources,
        lambda state, _: replace(state, status=status),
    )


_RULES: dict[str, _Rule] = {
    "run.submitted": _to("queued", "none"),
    "attempt.started": (
        lambda state, told: state.status == "queued" and told.attempt == state.fence + 1,
        lambda state, told: replace(state, status="running", fence=told.attempt),
    ),
    "attempt.failed": (
        lambda state, told: state.status == "running" and told.attempt == state.fence,
        lambda state, _: state,
    ),
    "attempt.lost": (
        lambda state, told: state.status == "running" and told.attempt == state.fence,
        lambda state, _: state,
    ),
    "run.retry_scheduled": _to("queued", "running"),
    "run.resumed": _to("queued", "running"),
    "run.cancel_requested": (
        lambda state, _: not state.final and not state.cancel_requested,
        lambda state, _: replace(state, cancel_requested=True),
    ),
    "run.succeeded": _to("succeeded", "running"),
    "run.failed": _to("failed", "running"),
    "run.cancelled": (
        lambda state, _: not state.final and state.cancel_requested,
        lambda state, _: replace(state, status="cancelled"),
    ),
}


def fold(events: Sequence[Told]) -> list[State]:
    """The state after each number, the one before all first. Raises `AssertionError`."""
    states = [State()]
    for told in events:
        fits, move = _RULES[told.type]
        assert fits(states[-1], told), f"{told} cannot follow {states[-1]}"
        states.append(move(states[-1], told))
    return states


_MOVED = {
    ("claim", "claimed"): "attempt.started",
    ("succeed", "succeeded"): "run.succeeded",
    ("retry", "queued"): "attempt.failed",
    ("retry", "failed"): "attempt.failed",
    ("hand_back", "queued"): "run.resumed",
}

_HEARD: dict[tuple[str, str], Callable[[State, Call], bool]] = {
    ("cancel", "cancelled"): lambda state, _: state.status == "cancelled",
    ("cancel", "requested"): lambda state, _: state.status == "running" and state.cancel_requested,
    ("cancel", "too_late"): lambda state, _: state.final and state.status != "cancelled",
    ("retry", "cancelled"): lambda state, _: state.status == "cancelled",
    ("hand_back", "cancelled"): lambda state, _: state.status == "cancelled",
}


def check(events: Sequence[Told], calls: Sequence[Call]) -> None:
    """Raises `AssertionError` unless every call finds its place."""
    states = fold(events)
    lost = {told.attempt for told in events if told.type == "attempt.lost"}
    placed = {call: _number_of(events, call) for call in calls if _moves(call)}
    for call in calls:
        low = max((n for other, n in placed.items() if other.ended < call.began), default=0)
        high = min((n for other, n in placed.items() if other.began > call.ended), default=None)
        within = range(low, len(states) if high is None else high)
        if call in placed:
            assert placed[call] > low or placed[call] == low == 0, f"{call} came too early"
            assert placed[call] in within, f"{call} came too late"
        else:
            assert any(_fits(states, number, call, lost) for number in within), (
                f"{call} fits nowhere"
            )


def _moves(call: Call) -> bool:
    return (call.verb, call.answer) in _MOVED


def _number_of(events: Sequence[Told], call: Call) -> int:
    wanted = Told(_MOVED[call.verb, call.answer], call.fence)
    numbers = [number for number, told in enumerate(events, 1) if told == wanted]
    assert len(numbers) == 1, f"{call} moved the run {len(numbers)} times"
    return numbers[0]


def _fits(states: Sequence[State], number: int, call: Call, lost: set[int]) -> bool:
    state = states[number]
    if call.verb == "read":
        return number == call.number and state.status == call.answer
    if call.answer == "fenced":
        # Refused while it still stood as the owner: its lease had run out, and so it ends as lost.
        owner = state.status == "running" and state.fence == call.fence
        return not owner or call.fence in lost
    return _HEARD[call.verb, call.answer](state, call)


def told(events: Sequence[Any]) -> list[Told]:
    """Events as they are read from the store; only some name the attempt that they are about."""
    about = {*_MOVED.values(), "attempt.lost"}
    return [
        Told(event.type, event.payload.get("attempt", 0) if event.type in about else 0)
        for event in events
    ]

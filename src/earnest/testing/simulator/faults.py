"""Fault rules: how a provider shall misbehave, how often, and for which calls.

There is one rule for each (provider, match). A rule is used up by `count` calls for an effect;
look-ups, malformed bodies and the control routes never use it. A call for an effect counts even
when the provider would recognise it as a repetition, so the answer to a resend can be spoiled too.
If several rules fit a call, the one with the longest `match` is used, and only that one.

| mode | does it | answers | `delay_ms` is waited |
| --- | --- | --- | --- |
| `accept_then_drop` | yes | nothing, closes the connection | after doing it |
| `slow` | yes, even if the caller is gone by then | normally | before doing it |
| `error_before` | no | 500 | before answering |
| `error_after` | yes | 500 | after doing it |
| `refuse` | no | 422 with a JSON body | before answering |
| `garbage` | yes | 200 with a body that is not JSON | after doing it |
| `duplicate_callback` | yes | normally; calls back twice, if it does | before doing it |
| `none` | takes the rule away | | |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from earnest.testing.simulator.asking import Misasked, known_provider, only_fields, whole_number

LONGEST_DELAY_MS = 3_600_000
MOST_CALLS = 1_000_000_000


class Mode(StrEnum):
    """How a call for an effect goes wrong."""

    NONE = "none"
    ACCEPT_THEN_DROP = "accept_then_drop"
    SLOW = "slow"
    ERROR_BEFORE = "error_before"
    ERROR_AFTER = "error_after"
    REFUSE = "refuse"
    GARBAGE = "garbage"
    DUPLICATE_CALLBACK = "duplicate_callback"


@dataclass(frozen=True, slots=True)
class EffectCall:
    """A well-formed call for an effect, as far as choosing a rule needs it."""

    provider: str
    path: str
    body: str


@dataclass(slots=True)
class Rule:
    """One fault. `count` is the number of calls it is still good for."""

    provider: str
    mode: Mode
    count: int = 1
    delay_ms: int = 0
    match: str | None = None

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Rule:
        """The rule that a body of `PUT /faults` describes; raises `Misasked`."""
        only_fields(body, ("provider", "mode", "count", "delay_ms", "match"))
        return cls(
            provider=known_provider(body.get("provider")),
            mode=_known_mode(body.get("mode")),
            count=whole_number("count", body.get("count", 1), least=1, most=MOST_CALLS),
            delay_ms=whole_number(
                "delay_ms", body.get("delay_ms", 0), least=0, most=LONGEST_DELAY_MS
            ),
            match=_match(body.get("match")),
        )

    def as_json(self) -> dict[str, Any]:
        """The form shown by `GET /faults`."""
        return {
            "provider": self.provider,
            "mode": self.mode.value,
            "count": self.count,
            "delay_ms": self.delay_ms,
            "match": self.match,
        }

    def fits(self, call: EffectCall) -> bool:
        """Whether the call goes to this provider and contains `match` in its path or body."""
        if call.provider != self.provider:
            return False
        return self.match is None or self.match in call.path or self.match in call.body


class FaultRules:
    """The rules of one simulator that are not used up yet."""

    def __init__(self) -> None:
        self._rules: dict[tuple[str, str | None], Rule] = {}

    def put(self, rule: Rule) -> None:
        """Set the rule in place of the one with the same provider and match; `none` removes it."""
        self._rules.pop((rule.provider, rule.match), None)
        if rule.mode is not Mode.NONE:
            self._rules[rule.provider, rule.match] = rule

    def clear(self) -> None:
        """Take all rules away. Calls that already wait out a delay are not hurried."""
        self._rules.clear()

    def rules(self) -> list[Rule]:
        """The rules in force, in the order in which they were set."""
        return list(self._rules.values())

    def take(self, call: EffectCall) -> Rule | None:
        """Use one call of the rule that fits best, if any does."""
        fitting = [rule for rule in self._rules.values() if rule.fits(call)]
        if not fitting:
            return None
        rule = max(fitting, key=lambda rule: len(rule.match or ""))
        rule.count -= 1
        if rule.count == 0:
            del self._rules[rule.provider, rule.match]
        return rule


def _known_mode(name: object) -> Mode:
    if isinstance(name, str) and name in Mode.__members__.values():
        return Mode(name)
    raise Misasked(f"unknown mode {name!r}: use one of {', '.join(Mode)}")


def _match(text: object) -> str | None:
    if text is None or (isinstance(text, str) and text):
        return text
    raise Misasked("match must be a non-empty string: a part of the path or of the body")

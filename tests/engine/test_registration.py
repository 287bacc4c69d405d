"""Registering: what cannot work is refused when it is declared, in one line that says why."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from earnest import App, Call, Context, Effect
from earnest.domain.errors import EarnestError, SettingInvalid
from earnest.domain.operation import EffectTerms, Recovery
from earnest.engine.process.engine import Engine
from earnest.engine.process.settings import EngineSettings
from tests.engine.provider import Order, Receipt


def refused(declare: Callable[[], object]) -> str:
    """The one line that is told."""
    with pytest.raises(SettingInvalid) as raised:
        declare()
    assert "\n" not in raised.value.detail
    return raised.value.detail


# ---- run kinds ---------------------------------------------------------------------------------


class NoJson:
    pass


def with_input(type_: Any) -> Callable[..., Any]:
    def handler(ctx: Context, value: Any) -> None:
        pass

    handler.__annotations__ = {"value": type_, "return": None}
    return handler


def test_a_kind_is_registered_once() -> None:
    app = App("twice")
    app.run("same")(with_input(int))
    detail = refused(lambda: app.run("same")(with_input(int)))
    assert detail == "the run kind same is registered twice; rename one"


@pytest.mark.parametrize(
    "handler",
    [lambda: None, lambda ctx: None, lambda ctx, a, b: None],
    ids=["none", "one", "three"],
)
def test_a_handler_takes_a_context_and_an_input(handler: Callable[..., Any]) -> None:
    detail = refused(lambda: App("shape").run("shape")(handler))
    assert detail == "the handler of shape must take (ctx, input), both positional"


def test_types_that_cannot_be_json_are_refused() -> None:
    detail = refused(lambda: App("odd").run("odd")(with_input(NoJson)))
    assert detail.startswith("the types of odd's handler cannot be JSON: ")


def test_annotations_that_cannot_be_read_are_refused() -> None:
    detail = refused(lambda: App("odd").run("odd")(with_input("Missing")))
    assert "the annotations of odd's handler cannot be read" in detail


@pytest.mark.parametrize("name", ["", "x" * 101, "a\x00b", "a\nb", "\ud800"])
def test_a_name_that_cannot_be_kept_is_refused(name: str) -> None:
    says = "1 to 100 printable characters"
    assert says in refused(lambda: App("names").run(name))
    assert says in refused(lambda: App("names").run("good", lane=name))
    if name:
        assert "printable characters" in refused(lambda: declare(kind=name, submit=submit))


@pytest.mark.parametrize("attempts", [0, -1, 1001])
def test_attempts_are_bounded(attempts: int) -> None:
    detail = refused(lambda: App("many").run("many", max_attempts=attempts))
    assert detail == "many: max_attempts must be between 1 and 1000"


@pytest.mark.parametrize("term", ["timeout", "deadline", "retry_first", "retry_longest"])
@pytest.mark.parametrize("span", ["soon", "10", "-5s", "5 weeks", -1])
def test_a_duration_that_is_none_is_refused(term: str, span: Any) -> None:
    terms: dict[str, Any] = {term: span}
    detail = refused(lambda: App("times").run("times", **terms)(with_input(int)))
    assert "is no duration" in detail or "is negative" in detail


@pytest.mark.parametrize("span", ["90s", "1.5m", 90, timedelta(seconds=90)])
def test_durations_are_written_as_people_write_them(span: Any) -> None:
    kind = App("times").run("times", timeout=span)(with_input(int))
    assert kind.timeout == timedelta(seconds=90)


def test_pauses_between_many_attempts_stay_below_the_longest() -> None:
    """However many: no number overflows."""
    retry = App("many").run("many", max_attempts=1000)(with_input(int)).retry
    for failures in (1, 47, 64, 999, 1000, 30_000):
        assert timedelta(seconds=1) <= retry.delay(failures, 0.5) <= timedelta(minutes=10)


# ---- effects -----------------------------------------------------------------------------------


async def submit(self: Any, call: Call, request: Order) -> Receipt:
    return Receipt(id=call.id)


async def lookup(self: Any, call: Call) -> Receipt | None:
    return None


def declare(**body: Any) -> type[Effect[Order, Receipt]]:
    found: type[Effect[Order, Receipt]] = type(
        "Declared", (Effect,), {"kind": "test.declared", **body}
    )
    return found


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"recovery": "hope", "submit": submit}, "'hope' is none of resend, lookup, hold"),
        ({"recovery": "resend", "submit": submit}, "for how long the provider honours its key"),
        ({"window": "1h", "submit": submit}, "and no other effect does"),
        ({"recovery": "lookup", "submit": submit}, "a lookup effect needs the method lookup"),
        ({"recovery": "hold"}, "an effect needs the method submit"),
        ({"timeout": "soon", "submit": submit}, "'soon' is no duration"),
        ({"recovery": "resend", "window": "later", "submit": submit}, "'later' is no duration"),
        (
            {"recovery": "lookup", "absent_after": "x", "submit": submit, "lookup": lookup},
            "'x' is no duration",
        ),
        ({"timeout": 0, "submit": submit}, "leaves no time to call"),
        (
            {"recovery": "resend", "window": "31s", "timeout": "30s", "submit": submit},
            "shorter than one call",
        ),
    ],
)
def test_an_effect_that_promises_what_it_cannot_keep_is_refused(
    body: dict[str, Any], says: str
) -> None:
    """P2: when its class is made, not when it is first used."""
    detail = refused(lambda: declare(**body))
    assert detail.startswith("test.declared: ")
    assert says in detail


def test_what_an_effect_declares_is_what_is_stored_with_its_operations() -> None:
    """P2: a process that never saw it knows what may be done."""
    effect = declare(
        kind="bank.declared", recovery="lookup", dedupes=True, absent_after="5m", timeout="10s",
        keeps_resource=False, submit=submit, lookup=lookup,
    )  # fmt: skip
    assert effect().terms() == EffectTerms(
        kind="bank.declared",
        recovery=Recovery.LOOKUP,
        provider="bank",
        dedupes=True,
        absent_after=timedelta(minutes=5),
        timeout=timedelta(seconds=10),
        keeps_resource=False,
    )


def test_an_effect_is_found_by_its_kind_in_any_process_that_has_imported_it() -> None:
    """P3: a look-up can be made by a process that never ran the handler."""
    effect = declare(kind="test.found", submit=submit)
    engine = Engine(database=None)  # type: ignore[arg-type]
    assert Effect.find("test.found") is effect
    assert isinstance(engine.effect("test.found"), effect)
    assert engine.effect("test.never.declared") is None
    assert "test.found" in engine.effect_kinds()


def test_an_effect_that_needs_arguments_is_used_as_the_app_provides_it() -> None:
    class Needy(Effect[Order, Receipt]):
        kind = "test.needy"

        def __init__(self, client: object) -> None:
            self.client = client

        async def submit(self, call: Call, request: Order) -> Receipt:
            return Receipt(id=call.id)

    engine = Engine(database=None)  # type: ignore[arg-type]
    assert engine.effect("test.needy") is None
    with pytest.raises(SettingInvalid, match="Needy cannot be made without arguments"):
        engine.effect_of(Needy)
    app, needy = App("needy"), Needy("client")
    app.effect(needy)
    engine.effects.update(app.effects)
    assert engine.effect_of(Needy) is needy


def test_an_effect_without_a_kind_is_told_to_name_one() -> None:
    """P2: others may build on such a class; it cannot be used itself."""
    nameless = declare(kind="", submit=submit)
    engine = Engine(database=None)  # type: ignore[arg-type]
    says = 'the effect Declared has no kind; name it in the class: kind = "bank.refund"'
    assert refused(lambda: engine.effect_of(nameless)) == says
    assert refused(lambda: engine.effect_of(nameless())) == says
    assert refused(lambda: App("nameless").effect(nameless())) == says


def test_a_kind_that_is_no_text_is_refused() -> None:
    assert "up to 100 printable characters: '5'" in refused(lambda: declare(kind=5, submit=submit))


def test_an_app_takes_instances_of_effects() -> None:
    app, effect = App("takes"), declare(kind="test.taken", submit=submit)
    assert "takes an instance: app.effect(Declared(...))" in refused(
        lambda: app.effect(effect)  # type: ignore[arg-type]
    )
    for other in (None, object(), dict):
        assert "is no effect" in refused(lambda other=other: app.effect(other))  # type: ignore[misc]


def test_a_second_instance_of_an_effect_is_refused_and_not_quietly_replaced_by_the_first() -> None:
    """P2: it may stand for another account, through which a doubt could not be settled."""
    effect = declare(kind="test.accounts", submit=submit)
    engine = Engine(database=None)  # type: ignore[arg-type]
    first, second = effect(), effect()
    assert engine.effect_of(first) is first
    assert engine.effect_of(first) is engine.effect_of(effect)
    detail = refused(lambda: engine.effect_of(second))
    assert "test.accounts has another instance in this process" in detail


# ---- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"renew_every": timedelta(seconds=16)},
        {"concurrency": 0},
        {"claim_batch": 0},
        {"lease": timedelta(0), "renew_every": timedelta(0)},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused_at_start(changed: dict[str, Any]) -> None:
    """P6."""
    refused(lambda: EngineSettings(**changed))


def test_every_error_has_a_title_and_a_code_of_its_own_words() -> None:
    """One tree: the first line of each docstring is what people read."""
    found, waiting = list[type[EarnestError]](), [EarnestError]
    while waiting:
        error = waiting.pop()
        found.append(error)
        waiting += error.__subclasses__()
    assert len(found) > 30
    for error in found:
        assert error.__doc__, error
        assert error.title(), error
        assert not error.title().endswith("."), error
        assert error.code == error.code.lower().replace(" ", "_")
        assert 400 <= error.status < 600

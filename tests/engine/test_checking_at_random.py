"""Handlers made at random, changed at random: what a check says is what then happens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from earnest import App, Context, RunKind
from earnest.engine.inspection import checking
from earnest.engine.inspection.checking import Asked
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Hold, Order, Provider, shop

HANDLERS = 300
VERBS = ("step", "step", "emit", "operation", "sleep", "child")


@dataclass(frozen=True)
class Ask:
    """One thing that a handler asks for: what, by which name, with what."""

    verb: str
    name: str
    value: int


Program = tuple[Ask, ...]


def make(rng: random.Random) -> Program:
    """Some asks, a wait among them, and a last one."""
    asks = [_ask(rng) for _ in range(rng.randint(1, 6))]
    asks.insert(rng.randint(0, len(asks)), Ask("wait", "go", 0))
    return tuple(asks)


def _ask(rng: random.Random) -> Ask:
    return Ask(rng.choice(VERBS), rng.choice("ab"), rng.randint(0, 1))


def change(program: Program, rng: random.Random) -> Program:
    asks = list(program)
    for _ in range(rng.randint(0, 2)):
        place = rng.randrange(len(asks))
        match rng.choice(["value", "name", "leave out", "put in", "swap", "append"]):
            case "value":
                asks[place] = replace(asks[place], value=asks[place].value + 1)
            case "name" if asks[place].verb != "wait":
                asks[place] = replace(asks[place], name="c")
            case "leave out" if asks[place].verb != "wait":
                del asks[place]
            case "put in":
                asks.insert(place, _ask(rng))
            case "swap":
                asks[place], asks[0] = asks[0], asks[place]
            case _:
                asks.append(_ask(rng))
    return tuple(asks)


async def say(value: int) -> int:
    return value


async def do(ctx: Context, ask: Ask, child: RunKind[int, int]) -> None:
    match ask.verb:
        case "step":
            await ctx.step(ask.name, say, ask.value)
        case "emit":
            await ctx.emit(f"app.{ask.name}", {"value": ask.value})
        case "operation":
            await ctx.operation(ask.name, Hold, Order(number=ask.value))
        case "sleep":
            await ctx.sleep(ask.value / 1000)
        case "child":
            await ctx.run(child, ask.value, name=ask.name)
        case _:
            await ctx.wait_signal(ask.name)


def make_app(programs: Sequence[Program], provider: Provider) -> App:
    """One kind for each program."""
    app = shop(provider)

    @app.run("child", max_attempts=1)
    async def child(ctx: Context, value: int) -> int:
        return value

    def register(kind: str, program: Program) -> None:
        @app.run(kind, max_attempts=1)
        async def work(ctx: Context, _: Any) -> None:
            for ask in program:
                await do(ctx, ask, child)

    for number, program in enumerate(programs):
        register(f"kind-{number}", program)
    return app


async def park_all(bench: Bench) -> dict[str, Any]:
    """A run of each kind, parked at its wait."""
    found = {}
    for kind in bench.engine.kinds:
        if kind.startswith("kind-"):
            found[kind] = await bench.submit(kind)
    await bench.drain()
    for run_id in found.values():
        assert await bench.status(run_id) == "waiting"
    return found


async def test_what_a_check_says_of_random_changes_is_what_then_happens(
    make_bench: MakeBench,
) -> None:
    """A run that fits is not refused; one that breaks is, by the code that was told."""
    rng, provider = random.Random(17), Provider()
    programs = [make(rng) for _ in range(HANDLERS)]
    runs = await park_all(make_bench(make_app(programs, provider)))
    changed = [change(program, rng) for program in programs]
    bench, asked, paid = make_bench(make_app(changed, provider)), Asked(), len(provider.done)
    listed = await checking.list_runs(bench.engine, asked)
    told = {
        one.kind: one
        async for one in checking.check(bench.engine, listed, asked)
        if one is not None
    }
    assert len(told) == HANDLERS
    assert len(provider.done) == paid
    for run_id in runs.values():
        await bench.signal(run_id, "go")
    await bench.drain()
    counts: Counter[str] = Counter()
    for number, (kind, run_id) in enumerate(runs.items()):
        code = ((await bench.find(run_id)).error or {}).get("code", "")
        verdict = told[kind].verdict.value
        counts[verdict] += 1
        if verdict != "unclear":
            about = (programs[number], changed[number], told[kind].detail)
            assert (verdict == "breaks", code) == (code == "code_changed", told[kind].code), about
    assert min(counts[verdict] for verdict in ("fits", "breaks", "unclear")) > HANDLERS // 40, (
        counts
    )
